#include "worker/data/sparse_dataset.h"

#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <fstream>
#include <set>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Format = SparseOptions::Format;
using Labels = SparseOptions::Labels;
using Numeric = SparseOptions::Numeric;

absl::StatusOr<SparseDataset> Libsvm(std::string_view text, SparseOptions options = {}) {
  options.format = Format::kLibsvm;
  return ReadSparse(OpenMemory(text, "a.svm").get(), options);
}
absl::StatusOr<SparseDataset> Clicks(std::string_view text, SparseOptions options = {}) {
  options.format = Format::kClickLog;
  return ReadSparse(OpenMemory(text, "a.tsv").get(), options);
}
std::string Message(const absl::StatusOr<SparseDataset>& result) { return std::string(result.status().message()); }

TEST(SparseLibsvmTest, TakesFilesAsTheyCome) {
  const auto data = Libsvm("# header\n+1 1:0.5 18446744073709551615:2 # comment\n-1 qid:7 0:1\r\n\n  \n-1\n1 9:-1e2 3:+4 ");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->row_begin, ElementsAre(0, 2, 3, 3, 5));
  EXPECT_THAT(data->ids, ElementsAre(1, UINT64_MAX, 0, 9, 3));
  EXPECT_THAT(data->values, ElementsAre(0.5, 2, 1, -100, 4));
  EXPECT_THAT(data->labels, ElementsAre(1, 0, 0, 1));
  EXPECT_EQ(data->examples_in_file, 4);
  EXPECT_THAT(data->row_ids(3), ElementsAre(9, 3));
  EXPECT_THAT(data->row_values(2), ElementsAre());
}

TEST(SparseLibsvmTest, MissingValuesAreNoFeatures) {
  const auto data = Libsvm("1 1:nan 2:? 3:NA 4:4 5:NaN\n0 1:1\n");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->ids, ElementsAre(4, 1));
}

TEST(SparseLibsvmTest, ErrorsNameFileAndLine) {
  EXPECT_THAT(Message(Libsvm("1 1:1\nx 1:1\n")), HasSubstr("a.svm:2: the label \"x\" is no finite number"));
  EXPECT_THAT(Message(Libsvm("1 1:1\n\n1 1\n")), HasSubstr("a.svm:3: \"1\" is not INDEX:VALUE"));
  EXPECT_THAT(Message(Libsvm("1,2 1:1\n")), HasSubstr("no finite number"));
  EXPECT_THAT(Message(Libsvm("1 -1:1\n")), HasSubstr("not INDEX:VALUE"));
  EXPECT_THAT(Message(Libsvm("1 :1\n")), HasSubstr("not INDEX:VALUE"));
  EXPECT_THAT(Message(Libsvm("1 a:1\n")), HasSubstr("not INDEX:VALUE"));
  EXPECT_THAT(Message(Libsvm("1 18446744073709551616:1\n")), HasSubstr("not INDEX:VALUE"));
  EXPECT_THAT(Message(Libsvm("1 1:\n")), HasSubstr("the value in \"1:\" is no finite number"));
  EXPECT_THAT(Message(Libsvm("1 1:inf\n")), HasSubstr("no finite number"));
  EXPECT_THAT(Message(Libsvm("1 1:1e99\n")), HasSubstr("no finite number"));
  EXPECT_THAT(Message(Libsvm("1 1:1:1\n")), HasSubstr("no finite number"));
  EXPECT_THAT(Message(Libsvm("1 2:1 1:1 2:3\n")), HasSubstr("feature 2 stands there twice"));
  EXPECT_THAT(Message(Libsvm("1 qid:x 1:1\n")), HasSubstr("names no query"));
  EXPECT_THAT(Message(Libsvm("1 1:1 qid:3\n")), HasSubstr("not INDEX:VALUE"));
  EXPECT_THAT(Message(Libsvm("nan 1:1\n")), HasSubstr("no finite number"));
  EXPECT_THAT(Message(Libsvm("")), HasSubstr("there is no example"));
  EXPECT_THAT(Message(Libsvm("# only this\n")), HasSubstr("there is no example"));
}

TEST(SparseLabelsTest, AnyTwoLabelsAreZeroAndOne) {
  for (const char* text : {"-1 1:1\n+1 2:1\n", "0 1:1\n1.0 2:1\n", "1 1:1\n2 2:1\n", "-7.5 1:1\n-7 2:1\n"}) {
    const auto data = Libsvm(text);
    ASSERT_TRUE(data.ok()) << text << data.status();
    EXPECT_THAT(data->labels, ElementsAre(0, 1)) << text;
  }
  EXPECT_THAT(Libsvm("2 1:1\n1 2:1\n")->labels, ElementsAre(1, 0));
  EXPECT_THAT(Libsvm("1 1:1\n1 2:1\n")->labels, ElementsAre(1, 1));
  EXPECT_THAT(Libsvm("-1 1:1\n")->labels, ElementsAre(0));
  EXPECT_THAT(Libsvm("0 1:1\n")->labels, ElementsAre(0));
  EXPECT_THAT(Message(Libsvm("2 1:1\n2 2:1\n")), HasSubstr("a.svm: all labels are 2"));
  EXPECT_THAT(Message(Libsvm("0 1:1\n1 2:1\n2 1:1\n")), HasSubstr("a.svm:3: label 2 besides 0 and 1"));
}

TEST(SparseLabelsTest, SecondFileIsReadLikeTheFirst) {
  const auto first = Libsvm("1 1:1\n2 2:1\n");
  ASSERT_TRUE(first.ok());
  const auto second = Libsvm("2 1:1\n2 2:1\n", OptionsLike(*first, {}));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(second->labels, ElementsAre(1, 1));
  EXPECT_THAT(Message(Libsvm("0 1:1\n", OptionsLike(*first, {}))), HasSubstr("label 0 besides 1 and 2"));
  const auto log = Clicks("1\ta\tb\n");
  ASSERT_TRUE(log.ok());
  EXPECT_THAT(Message(Clicks("1\ta\n", OptionsLike(*log, {}))), HasSubstr("1 columns behind the label where 2"));
}

TEST(SparseLabelsTest, RealLabelsStay) {
  const auto data = Libsvm("0.25 1:1\n-3e2 2:1\n7 2:1\n", {.labels = Labels::kReal});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->labels, ElementsAre(0.25, -300, 7));
  EXPECT_FALSE(data->label_values.has_value());
}

TEST(ClickLogTest, ColumnsAreHashedWithTheirPlace) {
  const auto data = Clicks("1\ta\tb\n0\tb\t\r\n\n1\t\ta b\xff\n");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->row_begin, ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(data->ids, ElementsAre(CategoryId(0, "a"), CategoryId(1, "b"), CategoryId(0, "b"),
                                     CategoryId(1, "a b\xff")));
  EXPECT_THAT(data->values, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(data->labels, ElementsAre(1, 0, 1));
  EXPECT_EQ(std::set<uint64_t>({CategoryId(0, "a"), CategoryId(1, "a"), CategoryId(0, "b"), CategoryId(0, "")}).size(), 4);
  // Ids are in users' checkpoints: they must not change.
  EXPECT_EQ(CategoryId(0, ""), 0x2d06800538d394c2u);
  EXPECT_EQ(CategoryId(3, "shoes"), 0x89a719e5cd825ceau);
}

TEST(ClickLogTest, NumbersAreBucketsOrValues) {
  const auto buckets = Clicks("1\t7\t\tx\n0\t-2.5\t0\tx\n", {.numeric_columns = 2});
  ASSERT_TRUE(buckets.ok()) << buckets.status();
  EXPECT_THAT(buckets->ids, ElementsAre(CategoryId(0, "9"), CategoryId(2, "x"), CategoryId(0, "-4"), CategoryId(1, "0"),
                                        CategoryId(2, "x")));
  const auto values = Clicks("1\t7\t\tx\n0\t-2.5\t0\tx\n", {.numeric_columns = 2, .numeric = Numeric::kValue});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(values->ids, ElementsAre(CategoryId(0, ""), CategoryId(2, "x"), CategoryId(0, ""), CategoryId(1, ""),
                                       CategoryId(2, "x")));
  EXPECT_THAT(values->values, ElementsAre(7, 1, -2.5, 0, 1));
}

TEST(ClickLogTest, BucketsGrowWithTheNumber) {
  EXPECT_EQ(NumericBucket(0), 0);
  EXPECT_EQ(NumericBucket(1), 1);
  EXPECT_EQ(NumericBucket(3), 4);
  EXPECT_EQ(NumericBucket(1000), 99);
  EXPECT_EQ(NumericBucket(-0.5), -1);
  EXPECT_EQ(NumericBucket(-1), -2);
  EXPECT_EQ(NumericBucket(3.4e38), 128 * 128 - 1);
  for (double x = -100; x < 100; x += 0.25) EXPECT_LE(NumericBucket(x), NumericBucket(x + 0.25)) << x;
}

TEST(ClickLogTest, ErrorsNameFileAndLine) {
  EXPECT_THAT(Message(Clicks("1\ta\tb\n0\ta\n")), HasSubstr("a.tsv:2: 1 columns behind the label where 2 are expected"));
  EXPECT_THAT(Message(Clicks("1\ta\tb\n0\ta\tb\t\n")), HasSubstr("a.tsv:2: 3 columns"));
  EXPECT_THAT(Message(Clicks("1\ta\n", {.columns = 2})), HasSubstr("a.tsv:1: 1 columns"));
  EXPECT_THAT(Message(Clicks("1 a b\n")), HasSubstr("no finite number"));
  EXPECT_THAT(Message(Clicks("1\n")), HasSubstr("separated by tabs"));
  EXPECT_THAT(Message(Clicks("\ta\n")), HasSubstr("a.tsv:1: the label \"\""));
  EXPECT_THAT(Message(Clicks("1\ta\n", {.numeric_columns = 1})), HasSubstr("a.tsv:1: column 2: \"a\" is no finite"));
  EXPECT_THAT(Message(Clicks("1\t1\n", {.numeric_columns = 2})), HasSubstr("1 columns, but 2 numeric ones"));
}

TEST(SparseLimitsTest, MalformedLinesAreCountedUpToTheBound) {
  const std::string text = "1 1:1\nx 1:1\n0 2:2\n1 3:3 4:x\n1 5:5\n";
  EXPECT_THAT(Message(Libsvm(text)), HasSubstr("a.svm:2"));
  EXPECT_THAT(Message(Libsvm(text, {.max_malformed = 1})),
              ::testing::AllOf(HasSubstr("a.svm:4: the value in \"4:x\""), HasSubstr("malformed line 2"),
                               HasSubstr("the first: a.svm:2")));
  const auto data = Libsvm(text, {.max_malformed = 2});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->ids, ElementsAre(1, 2, 5));
  EXPECT_THAT(data->row_begin, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(data->malformed, 2);
  EXPECT_EQ(data->examples_in_file, 5);
  EXPECT_THAT(data->first_malformed, HasSubstr("a.svm:2"));
  EXPECT_THAT(Message(Libsvm("x\ny\n", {.max_malformed = 5})), HasSubstr("all 2 lines of worker 0 are malformed"));
}

TEST(SparseLimitsTest, LimitsHold) {
  SparseOptions options;
  options.limits.max_bytes = 100;
  const auto large = Libsvm("1 1:1 2:1 3:1\n0 1:1 2:1 3:1\n1 1:1 2:1 3:1\n", options);
  EXPECT_EQ(large.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(large), HasSubstr("a.svm:2"));
  options.limits = {.max_features = 2};
  EXPECT_THAT(Message(Libsvm("1 1:1 2:1 3:1\n", options)), HasSubstr("more than 2 features"));
  EXPECT_THAT(Message(Clicks("1\ta\tb\tc\n", options)), HasSubstr("more than 2 columns"));
  options.limits = {.max_line_bytes = 1000};
  EXPECT_THAT(Message(Libsvm("1 1:1\n1 1:" + std::string(1 << 20, '0'), options)), HasSubstr("a.svm:2: the line is longer"));
  EXPECT_THAT(Message(Libsvm("1 1:1\n", {.rank = 2, .workers = 2})), HasSubstr("no worker 2 of 2"));
  EXPECT_THAT(Message(Libsvm("1 1:1\n", {.rank = 0, .workers = 0})), HasSubstr("no worker 0 of 0"));
  EXPECT_THAT(Message(Libsvm("1 1:1\n", {.rank = 1, .workers = 2})), HasSubstr("leave none for worker 1 of 2"));
  EXPECT_FALSE(ReadSparse(OpenMemory("1 1:1\n", "x").get(), SparseOptions{}).ok());
}

// The shares of all workers, interleaved, are the whole file; labels mean the same in each.
TEST(SparseShardsTest, SharesInterleaveToTheWholeFile) {
  std::string text = "# head\n";
  PhiloxRandom random(5);
  for (int row = 0; row < 101; ++row) {
    text += row == 37 ? "5" : "3";  // only one worker has a label of the larger kind
    for (uint32_t i = 0; i < random.Below(5); ++i) {
      text += " " + std::to_string(100 * i + random.Below(100)) + ":" + std::to_string(random.Below(100));
    }
    text += random.Chance(0.2) ? "\n\n" : "\n";
  }
  const auto whole = Libsvm(text);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_EQ(whole->rows(), 101);
  for (const uint32_t workers : {1, 2, 7}) {
    std::vector<SparseDataset> shares;
    for (uint32_t rank = 0; rank < workers; ++rank) {
      auto share = Libsvm(text, {.rank = rank, .workers = workers});
      ASSERT_TRUE(share.ok()) << share.status();
      EXPECT_EQ(share->examples_in_file, 101);
      EXPECT_EQ(share->rows(), (101 - rank + workers - 1) / workers);
      shares.push_back(*std::move(share));
    }
    for (size_t row = 0; row < whole->rows(); ++row) {
      const SparseDataset& share = shares[row % workers];
      const size_t at = row / workers;
      EXPECT_EQ(whole->labels[row], share.labels[at]);
      EXPECT_TRUE(std::ranges::equal(whole->row_ids(row), share.row_ids(at)));
      EXPECT_TRUE(std::ranges::equal(whole->row_values(row), share.row_values(at)));
    }
  }
}

TEST(SparseShardsTest, MalformedLinesAreTheirOwnersAlone) {
  const std::string text = "1\ta\n0\tb\n9\tc\n1\n1\td\n0\te\n";
  const auto even = Clicks(text, {.rank = 0, .workers = 2, .max_malformed = 1});
  ASSERT_TRUE(even.ok()) << even.status();
  EXPECT_THAT(even->ids, ElementsAre(CategoryId(0, "a"), CategoryId(0, "d")));
  EXPECT_THAT(even->first_malformed, HasSubstr("a.tsv:3: label 9 besides 1 and 0"));
  const auto odd = Clicks(text, {.rank = 1, .workers = 2, .max_malformed = 1});
  ASSERT_TRUE(odd.ok()) << odd.status();
  EXPECT_THAT(odd->ids, ElementsAre(CategoryId(0, "b"), CategoryId(0, "e")));
  EXPECT_THAT(odd->first_malformed, HasSubstr("a.tsv:4"));
}

class SparseFilesTest : public ::testing::Test {
 protected:
  SparseFilesTest() : prefix_(::testing::TempDir() + "/sparse-" + std::to_string(::getpid()) + "-") {}
  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(prefix_ + name, std::ios::binary) << content;
    return prefix_ + name;
  }
  std::string WriteGz(const std::string& name, const std::string& content) {
    gzFile file = gzopen((prefix_ + name).c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
    return prefix_ + name;
  }
  std::string prefix_;
};

TEST_F(SparseFilesTest, FormatComesFromTheName) {
  EXPECT_TRUE(ReadSparse(Write("a.svm", "1 1:1\n")).ok());
  EXPECT_TRUE(ReadSparse(WriteGz("a.libsvm.gz", "1 1:1\n")).ok());
  EXPECT_TRUE(ReadSparse(WriteGz("a.tsv.gz", "1\ta\n")).ok());
  const std::string unnamed = Write("a.txt", "1 1:1\n");
  EXPECT_THAT(Message(ReadSparse(unnamed)), HasSubstr("cannot tell the format"));
  EXPECT_TRUE(ReadSparse(unnamed, {.format = *ParseSparseFormat("libsvm")}).ok());
  EXPECT_FALSE(ParseSparseFormat("csv").ok());
  EXPECT_EQ(ReadSparse(prefix_ + "none.svm").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SparseFilesTest, DamagedGzipIsAnError) {
  std::string text;
  PhiloxRandom random(1);
  for (int i = 0; i < 20000; ++i) text += "1\t" + std::to_string(random()) + "\n";
  const std::string path = WriteGz("big.tsv.gz", text);
  ASSERT_EQ(ReadSparse(path)->rows(), 20000);
  std::ifstream in(path, std::ios::binary);
  const std::string packed((std::istreambuf_iterator<char>(in)), {});
  const auto cut = ReadSparse(Write("cut.tsv.gz", packed.substr(0, packed.size() / 2)), {.max_malformed = 100});
  EXPECT_EQ(cut.status().code(), absl::StatusCode::kDataLoss) << cut.status();
}

// Random damage: never a crash, and what is accepted is well-formed.
TEST(SparseDamageTest, DamagedLinesAreRefusedOrCounted) {
  PhiloxRandom random(11);
  const std::string good[] = {"1 qid:1 1:0.5 2:2 # x\n-1 3:nan 7:1e-3\n1\n", "1\t7\t\tabc\td\n0\t-1.5\t3\t\t\n"};
  size_t accepted = 0, refused = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::string text = good[trial % 2] + good[trial % 2];
    for (uint32_t i = 0; i <= random.Below(4); ++i) {
      const uint32_t at = random.Below(static_cast<uint32_t>(text.size()));
      constexpr std::string_view kBytes = "\t\n :#-+.0eE9\xff";
      if (random.Chance(0.3)) {
        text.erase(at, 1 + random.Below(3));
      } else {
        text.insert(at, 1, kBytes[random.Below(static_cast<uint32_t>(kBytes.size()))]);
      }
      if (text.empty()) text = "1";
    }
    const SparseOptions options{.numeric_columns = 2, .rank = random.Below(2), .workers = 2, .max_malformed = 1};
    const auto data = trial % 2 == 0 ? Libsvm(text, options) : Clicks(text, options);
    ++(data.ok() ? accepted : refused);
    if (!data.ok()) continue;
    ASSERT_LE(data->malformed, 1);
    ASSERT_EQ(data->row_begin.size(), data->rows() + 1);
    ASSERT_EQ(data->row_begin.back(), data->ids.size());
    ASSERT_EQ(data->ids.size(), data->values.size());
    for (const float value : data->values) ASSERT_TRUE(std::isfinite(value));
    for (const float label : data->labels) ASSERT_TRUE(label == 0 || label == 1);
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace sluice::worker
