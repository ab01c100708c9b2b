// What Client::ConnectFromFlags takes out of a trainer's command line, and what it leaves. --print-config and a codec
// that does not exist end each call before anything is connected.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A command line as main() gets it, and what a call made of it.
class CommandLine {
 public:
  explicit CommandLine(std::vector<std::string> words) : words_(std::move(words)) {
    words_.insert(words_.begin(), "trainer");
    for (std::string& word : words_) argv_.push_back(word.data());
    argv_.push_back(nullptr);
    argc_ = static_cast<int>(words_.size());
  }

  Status Connect(ClientOptions options = {}) {
    options.use_environment = false;
    ::testing::internal::CaptureStdout();
    Result<std::unique_ptr<Client>> client = Client::ConnectFromFlags(&argc_, argv_.data(), std::move(options));
    printed_ = ::testing::internal::GetCapturedStdout();
    return client.status();
  }

  std::vector<std::string> left() const { return {argv_.begin() + 1, argv_.begin() + argc_}; }
  bool ends_with_null() const { return argv_[static_cast<size_t>(argc_)] == nullptr; }
  const std::string& printed() const { return printed_; }

 private:
  std::vector<std::string> words_;
  std::vector<char*> argv_;
  int argc_ = 0;
  std::string printed_;
};

TEST(ClientFlags, ATrainersOwnRateAndNameAreNotSwallowed) {
  CommandLine line({"--rate=0.5", "--job.workers", "2", "--name", "mine", "--workers=8", "--codec", "zip", "input.txt",
                    "--job.codec=no-such-codec", "--trace=mine.json"});
  const Status status = line.Connect();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("no-such-codec"));
  EXPECT_THAT(line.left(), ElementsAre("--rate=0.5", "--name", "mine", "--workers=8", "--codec", "zip", "input.txt",
                                       "--trace=mine.json"));
  EXPECT_TRUE(line.ends_with_null());
}

TEST(ClientFlags, NothingBehindTwoDashesIsTaken) {
  CommandLine line({"--print-config", "x", "--node.port=5", "x", "--", "--node.port=6", "x", "--config=none", "--"});
  EXPECT_EQ(line.Connect().code(), Code::kCancelled);
  EXPECT_THAT(line.left(), ElementsAre("x", "x", "--", "--node.port=6", "x", "--config=none", "--"));
  EXPECT_TRUE(line.ends_with_null());
  EXPECT_THAT(line.printed(), ::testing::ContainsRegex("node.port +.*5 +.flag."));
}

TEST(ClientFlags, PrintConfigShowsWhatTheTrainerSetItself) {
  CommandLine line({"--print-config", "--job.codec=int8", "--help"});
  EXPECT_EQ(line.Connect({.settings = {"job.name=mine", "job.codec=fp16"}}).code(), Code::kCancelled);
  EXPECT_THAT(line.printed(), ::testing::ContainsRegex("job.name +.*mine +.setting."));
  EXPECT_THAT(line.printed(), ::testing::ContainsRegex("job.codec +.*int8 +.flag."));
  EXPECT_THAT(line.left(), ElementsAre("--help"));
}

TEST(ClientFlags, AMisspelledSettingNamesTheNearestAndLeavesTheCommandLine) {
  CommandLine line({"--rate=0.5", "--job.codce=int8"});
  const Status status = line.Connect();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("--job.codce"), HasSubstr("nearest is --job.codec")));
  EXPECT_THAT(line.left(), ElementsAre("--rate=0.5", "--job.codce=int8"));
}

TEST(ClientFlags, ACommandLineWithoutWordsIsTaken) {
  int argc = 0;
  char* argv[] = {nullptr};
  const auto client =
      Client::ConnectFromFlags(&argc, argv, {.settings = {"job.codec=no-such-codec"}, .use_environment = false});
  EXPECT_EQ(client.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(argc, 0);
}

}  // namespace
}  // namespace sluice
