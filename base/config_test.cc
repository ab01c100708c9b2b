#include "base/config.h"

#include <cstdio>
#include <fstream>

#include "base/config_schema.h"
#include "base/config_text.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Variables = std::map<std::string, std::string, std::less<>>;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

absl::StatusOr<LoadedConfig> Load(std::vector<std::string> arguments, Variables variables = {},
                                  ConfigOptions options = {}) {
  return LoadConfig(options, arguments, Environment(std::move(variables)));
}

std::string LoadError(std::vector<std::string> arguments, Variables variables = {}, ConfigOptions options = {}) {
  const auto loaded = Load(std::move(arguments), std::move(variables), std::move(options));
  return loaded.ok() ? "no error" : Message(loaded.status());
}

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

TEST(Config, DefaultsAreThoseOfTheProtoFilesComments) {
  const auto loaded = Load({});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const proto::Config& config = loaded->config;
  EXPECT_EQ(config.node().scheduler(), "127.0.0.1:7700");
  EXPECT_EQ(config.node().listen(), "127.0.0.1");
  EXPECT_EQ(config.node().metrics_port(), -1);
  EXPECT_EQ(config.node().lease_ms(), 5000u);
  EXPECT_EQ(config.job().partition_bytes(), 4u << 20);
  EXPECT_EQ(config.job().optimizer().epsilon(), 1e-8);
  EXPECT_EQ(config.data().pool_bytes(), 256u << 20);
  EXPECT_EQ(config.data().fusion_cycle_us(), 200u);
  EXPECT_EQ(loaded->sources.at("node.lease_ms"), "default");
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(config, DefaultConfig()));
}

TEST(Config, AFlagWinsOverEnvironmentOverLauncherOverFileOverDefault) {
  const std::string file = WriteFile("precedence.txt",
                                     "job { workers: 2 codec: \"fp16\" staleness: 9 }\n"
                                     "node { lease_ms: 7s heartbeat_ms: 100ms }\n");
  const Variables variables = {{"WORLD_SIZE", "3"}, {"SLUICE_JOB_CODEC", "bf16"}, {"SLUICE_NODE_LEASE_MS", "8s"}};
  const auto loaded = Load({"--config", file, "--node.lease_ms=9s"}, variables, {.role = "worker"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.job().staleness(), 9u);
  EXPECT_EQ(loaded->sources.at("job.staleness"), "file " + file + ":1");
  EXPECT_EQ(loaded->config.job().workers(), 3u);
  EXPECT_EQ(loaded->sources.at("job.workers"), "env WORLD_SIZE");
  EXPECT_EQ(loaded->config.job().codec(), "bf16");
  EXPECT_EQ(loaded->sources.at("job.codec"), "env SLUICE_JOB_CODEC");
  EXPECT_EQ(loaded->config.node().lease_ms(), 9000u);
  EXPECT_EQ(loaded->sources.at("node.lease_ms"), "flag");
  EXPECT_EQ(loaded->config.node().heartbeat_ms(), 100u);
  EXPECT_EQ(loaded->sources.at("node.heartbeat_ms"), "file " + file + ":2");
}

TEST(Config, ProgramDefaultsAndSettingsHaveTheirPlace) {
  ConfigOptions options{.defaults = "node { port: 7700 lease_ms: 6s }",
                        .settings = {"job.codec=int8", "job.workers=5"}};
  const auto loaded = Load({"--workers=6"}, {{"SLUICE_JOB_CODEC", "fp16"}}, options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.node().port(), 7700u);
  EXPECT_EQ(loaded->sources.at("node.port"), "default");
  EXPECT_EQ(loaded->config.job().codec(), "int8");
  EXPECT_EQ(loaded->sources.at("job.codec"), "setting");
  EXPECT_EQ(loaded->config.job().workers(), 6u);
}

TEST(Config, AnExplicitZeroOfAFileIsNotADefault) {
  const std::string file = WriteFile("zero.txt", "data { fusion_bytes: 0 }");
  const auto loaded = Load({"--config=" + file});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.data().fusion_bytes(), 0u);
}

TEST(Config, FlagsTakeEveryDocumentedForm) {
  std::string model = "mlp";
  int epochs = 1;
  bool quick = false;
  double part = 0;
  std::vector<std::string> data;
  ConfigOptions options{.flags = {{"model", "", &model},
                                  {"epochs", "", &epochs},
                                  {"quick", "", &quick},
                                  {"part", "", &part},
                                  {"data-file", "", &data}},
                        .take_arguments = true};
  const auto loaded = Load({"--model", "softmax", "one", "--epochs=7", "--quick", "--part=0.5", "--data-file", "a",
                            "--data_file=b", "--node.exit-when-done", "--node.metrics_port", "-1", "--trace", "t.json",
                            "--job.mode=SSP", "--job.no_error_feedback=false", "--", "--two"},
                           {}, options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(model, "softmax");
  EXPECT_EQ(epochs, 7);
  EXPECT_TRUE(quick);
  EXPECT_EQ(part, 0.5);
  EXPECT_THAT(data, ElementsAre("a", "b"));
  EXPECT_TRUE(loaded->config.node().exit_when_done());
  EXPECT_EQ(loaded->config.node().metrics_port(), -1);
  EXPECT_EQ(loaded->config.node().trace(), "t.json");
  EXPECT_EQ(loaded->config.job().mode(), proto::MODE_SSP);
  EXPECT_THAT(loaded->arguments, ElementsAre("one", "--two"));
}

TEST(Config, UnknownNamesAreRefusedWithTheNearest) {
  EXPECT_THAT(LoadError({"--job.codecs=int8"}), HasSubstr("nearest is --job.codec"));
  EXPECT_THAT(LoadError({"--epocs=3"}, {}, {.flags = {{"epochs", "", static_cast<int*>(nullptr)}}}),
              HasSubstr("nearest is --epochs"));
  EXPECT_THAT(LoadError({}, {{"SLUICE_NODE_LEASEMS", "3"}}),
              AllOf(HasSubstr("SLUICE_NODE_LEASEMS"), HasSubstr("nearest is SLUICE_NODE_LEASE_MS")));
  EXPECT_THAT(LoadError({}, {}, {.settings = {"job.worker=3"}}), HasSubstr("nearest is job.workers"));
  EXPECT_THAT(LoadError({"word"}), HasSubstr("\"word\" is not a flag"));
  EXPECT_THAT(LoadError({"--job.codec"}), HasSubstr("needs a value"));
  EXPECT_THAT(LoadError({"--job.codec", "--job.workers=1"}), HasSubstr("needs a value"));
}

TEST(Config, BadValuesNameTheKeyAndWhatWouldBeTaken) {
  EXPECT_THAT(LoadError({"--job.workers=many"}), AllOf(HasSubstr("job.workers"), HasSubstr("whole number")));
  EXPECT_THAT(LoadError({"--job.workers=-1"}), HasSubstr("between 0 and 4294967295"));
  EXPECT_THAT(LoadError({"--job.mode=sp"}), HasSubstr("bsp|ssp|asp"));
  EXPECT_THAT(LoadError({"--job.partition_bytes=4MB"}), HasSubstr("KiB"));
  EXPECT_THAT(LoadError({"--job.partition_bytes=4GiB"}), HasSubstr("between"));
  EXPECT_THAT(LoadError({"--node.lease_ms=1us"}), HasSubstr("finer"));
  EXPECT_THAT(LoadError({"--job.optimizer.rate=nan"}), HasSubstr("real number"));
  EXPECT_THAT(LoadError({}, {{"SLUICE_JOB_WORKERS", ""}}), HasSubstr("SLUICE_JOB_WORKERS"));
  EXPECT_THAT(LoadError({}, {{"RANK", "first"}}), HasSubstr("RANK"));
}

TEST(Config, ChecksOfTheWholeNameTheKey) {
  EXPECT_THAT(LoadError({"--node.port=70000"}), HasSubstr("node.port"));
  EXPECT_THAT(LoadError({"--node.scheduler=localhost"}), HasSubstr("host:port"));
  EXPECT_THAT(LoadError({"--node.lease_ms=900"}), HasSubstr("two heartbeats"));
  EXPECT_THAT(LoadError({"--data.transport=tpc"}), HasSubstr("nearest is tcp"));
  EXPECT_THAT(LoadError({"--job.workers=0"}), HasSubstr("job.workers"));
  EXPECT_THAT(LoadError({"--job.optimizer.momentum=1.5"}), HasSubstr("job.optimizer.momentum"));
}

TEST(Config, FileErrorsNameLineAndColumn) {
  const auto error = [](const std::string& text) {
    const auto parsed = ParseConfigText(text, "c.txt");
    return parsed.ok() ? "no error" : Message(parsed.status());
  };
  EXPECT_THAT(error("job {\n  coddec: \"int8\"\n}"), AllOf(StartsWith("c.txt:2:3: "), HasSubstr("\"job.codec\"")));
  EXPECT_THAT(error("jobs { }"), AllOf(StartsWith("c.txt:1:1: "), HasSubstr("nearest is \"job\"")));
  EXPECT_THAT(error("job { workers: 1\n workers: 2 }"), AllOf(StartsWith("c.txt:2:2: "), HasSubstr("first in line 1")));
  EXPECT_THAT(error("job { workers: two }"), StartsWith("c.txt:1:16: "));
  EXPECT_THAT(error("job { codec: int8 }"), HasSubstr("in quotes"));
  EXPECT_THAT(error("job { codec: \"int8 }"), StartsWith("c.txt:1:"));
  EXPECT_THAT(error("job { workers 2 }"), HasSubstr("expected \":\""));
  EXPECT_THAT(error("job { workers: 2"), HasSubstr("not closed"));
  EXPECT_THAT(error("job { } }"), StartsWith("c.txt:1:9: "));
  EXPECT_THAT(error("job: 5"), HasSubstr("expected \"{\""));
  EXPECT_THAT(error("{"), HasSubstr("expected a key"));
  EXPECT_THAT(error(std::string((1 << 20) + 1, ' ')), HasSubstr("1 MiB"));
  EXPECT_THAT(LoadError({"--config=/nowhere/x"}), HasSubstr("/nowhere/x"));
}

TEST(Config, FileTakesCommentsUnitsAndShortNames) {
  const auto parsed = ParseConfigText(
      "# first\nnode { lease_ms: 3s, metrics_port: -1; }\njob: { mode: MODE_SSP order: exact name: \"a\" 'b' "
      "optimizer { rate: 1e-3 } }",
      "c.txt");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  proto::Config config;
  for (const ConfigAssignment& a : *parsed) ASSERT_TRUE(SetConfigValue(*a.key, a.text, &config).ok());
  EXPECT_EQ(config.node().lease_ms(), 3000u);
  EXPECT_EQ(config.node().metrics_port(), -1);
  EXPECT_EQ(config.job().mode(), proto::MODE_SSP);
  EXPECT_EQ(config.job().order(), proto::ORDER_EXACT);
  EXPECT_EQ(config.job().name(), "ab");
  EXPECT_EQ(config.job().optimizer().rate(), 1e-3);
}

TEST(Config, EveryValueSurvivesTheWayThroughItsText) {
  proto::Config config = DefaultConfig();
  config.mutable_job()->mutable_optimizer()->set_rate(0.1 + 0.2);
  config.mutable_node()->set_metrics_port(-1);
  config.mutable_job()->set_on_worker_loss(proto::LOSS_RESCALE);
  config.mutable_data()->set_pool_bytes(~uint64_t{0});
  proto::Config copy;
  for (const ConfigKey& key : ConfigKeys()) {
    const absl::Status status = SetConfigValue(key, GetConfigValue(key, config), &copy);
    ASSERT_TRUE(status.ok()) << key.name << ": " << status;
  }
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(config, copy));
}

TEST(Config, KeysHaveDifferentEnvironmentNames) {
  std::map<std::string, std::string> seen;
  for (const ConfigKey& key : ConfigKeys())
    EXPECT_TRUE(seen.emplace(key.EnvironmentName(), key.name).second)
        << key.name << " and " << seen[key.EnvironmentName()];
}

TEST(Config, LaunchersAreUnderstood) {
  auto torch =
      Load({}, {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"SLURM_PROCID", "7"}}, {.role = "worker"});
  ASSERT_TRUE(torch.ok()) << torch.status();
  EXPECT_EQ(torch->launch.rank, 3);
  EXPECT_EQ(torch->launch.local_rank, 1);
  EXPECT_EQ(torch->config.job().workers(), 4u);

  auto slurm = Load({}, {{"SLURM_PROCID", "7"}, {"SLURM_NTASKS", "8"}}, {.role = "worker"});
  ASSERT_TRUE(slurm.ok()) << slurm.status();
  EXPECT_EQ(slurm->launch.rank, 7);
  EXPECT_EQ(slurm->config.job().workers(), 8u);

  const Variables dmlc = {{"DMLC_ROLE", "server"},
                          {"DMLC_PS_ROOT_URI", "10.0.0.1"},
                          {"DMLC_PS_ROOT_PORT", "9000"},
                          {"DMLC_NUM_WORKER", "5"},
                          {"DMLC_NUM_SERVER", "2"}};
  auto server = Load({}, dmlc, {.role = "server"});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(server->config.node().scheduler(), "10.0.0.1:9000");
  EXPECT_EQ(server->config.node().servers(), 2u);
  EXPECT_EQ(server->config.job().workers(), 5u);
  EXPECT_FALSE(server->launch.rank.has_value());
  EXPECT_THAT(LoadError({}, dmlc, {.role = "worker"}), HasSubstr("DMLC_ROLE"));

  Variables scheduler_variables = dmlc;
  scheduler_variables["DMLC_ROLE"] = "scheduler";
  auto scheduler = Load({}, scheduler_variables, {.role = "scheduler"});
  ASSERT_TRUE(scheduler.ok()) << scheduler.status();
  EXPECT_EQ(scheduler->config.node().port(), 9000u);
  EXPECT_EQ(scheduler->config.node().listen(), "10.0.0.1");
}

TEST(Config, AnEmbeddingProgramKeepsItsOwnFlags) {
  const auto loaded =
      Load({"--epochs", "3", "--job.codec=int8", "file", "--help", "--node.port", "5", "--", "--job.workers=9"}, {},
           {.pass_unknown_flags = true});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->arguments, ElementsAre("--epochs", "3", "file", "--help", "--", "--job.workers=9"));
  EXPECT_EQ(loaded->config.job().codec(), "int8");
  EXPECT_EQ(loaded->config.node().port(), 5u);
  EXPECT_EQ(loaded->action, LoadedConfig::Action::kRun);
}

// Regression: a trainer's own --rate and --name were taken for job.optimizer.rate and job.name.
TEST(Config, AnEmbeddingProgramKeepsFlagsThatEndLikeKeys) {
  const auto loaded = Load({"--rate=0.5", "--name", "mine", "--workers=8", "--codec=zip", "--trace", "--exit-when-done",
                            "--node.lease-ms", "9000", "--jobs.x=1", "-v"},
                           {}, {.pass_unknown_flags = true});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->arguments, ElementsAre("--rate=0.5", "--name", "mine", "--workers=8", "--codec=zip", "--trace",
                                             "--exit-when-done", "--jobs.x=1", "-v"));
  EXPECT_EQ(loaded->config.node().lease_ms(), 9000u);
  for (const auto& [key, source] : loaded->sources) EXPECT_EQ(source, key == "node.lease_ms" ? "flag" : "default");
}

TEST(Config, AnEmbeddingProgramsMisspelledSettingIsAnError) {
  const ConfigOptions embedding{.pass_unknown_flags = true};
  EXPECT_THAT(LoadError({"--job.codce=int8"}, {}, embedding), HasSubstr("nearest is --job.codec"));
  EXPECT_THAT(LoadError({"--node.ports=8"}, {}, embedding), HasSubstr("nearest is --node.port"));
  EXPECT_THAT(LoadError({"--config"}, {}, embedding), HasSubstr("needs a value"));
}

TEST(Config, AnEmbeddingProgramCanPrintItsSettings) {
  const auto loaded = Load({"--print-config", "--version"}, {}, {.pass_unknown_flags = true});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->action, LoadedConfig::Action::kPrintConfig);
  EXPECT_THAT(loaded->arguments, ElementsAre("--version"));
}

TEST(Config, HelpNamesEveryKeyWithItsCommentAndDefault) {
  int epochs = 1;
  const std::string help =
      HelpText({.program = "sluice-x", .summary = "Does x.", .flags = {{"epochs", "passes", &epochs}}});
  for (const ConfigKey& key : ConfigKeys()) EXPECT_THAT(help, HasSubstr("--" + key.name + " "));
  EXPECT_THAT(help, HasSubstr("a silent member is lost after this"));
  EXPECT_THAT(help, HasSubstr("[4194304; a size"));
  EXPECT_THAT(help, HasSubstr("bsp: a round closes when every worker contributed"));
  EXPECT_THAT(help, HasSubstr("--epochs=N   [1]"));
  EXPECT_THAT(help, HasSubstr("Does x."));
}

// Regression: `sluice-worker --batch=64 --help` said that 64 was the default.
TEST(Config, HelpShowsDefaultsWhereverItStands) {
  int batch = 32;
  std::string model = "softmax";
  std::vector<std::string> files;
  const ConfigOptions options{.flags = {{"batch", "examples", &batch}, {"model", "", &model}, {"file", "", &files}}};
  for (const char* help : {"--help", "-h"}) {
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"--batch=64", "--model", "mlp", "--file=a", "--node.port=5", help},
          {help, "--batch=64", "--model", "mlp"}}) {
      const auto loaded = Load(arguments, {}, options);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ(loaded->action, LoadedConfig::Action::kHelp);
      const std::string text = HelpText(options);
      EXPECT_THAT(text, AllOf(HasSubstr("--batch=N   [32]"), HasSubstr("--model=TEXT   [softmax]")));
      EXPECT_TRUE(files.empty());
    }
  }
  EXPECT_EQ(Load({"--", "--help"}, {}, {.take_arguments = true})->action, LoadedConfig::Action::kRun);
}

TEST(Config, HelpAndVersionWorkWhateverElseIsWrong) {
  EXPECT_EQ(Load({"--nonsense", "word", "--node.port=x", "--help"})->action, LoadedConfig::Action::kHelp);
  const auto help = Load({"--help"}, {{"SLUICE_NONSENSE", "1"}});
  ASSERT_TRUE(help.ok());
  EXPECT_EQ(help->action, LoadedConfig::Action::kHelp);
  const auto version = Load({"--version"}, {{"RANK", "x"}});
  ASSERT_TRUE(version.ok());
  EXPECT_EQ(version->action, LoadedConfig::Action::kVersion);
}

TEST(Config, PrintConfigShowsValueAndSource) {
  const auto loaded = Load({"--print-config", "--job.codec=topk:0.01"}, {{"SLUICE_NODE_PORT", "81"}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->action, LoadedConfig::Action::kPrintConfig);
  const std::string text = PrintConfigText(*loaded);
  EXPECT_THAT(text, ::testing::ContainsRegex("job.codec +.*topk:0.01 +.flag."));
  EXPECT_THAT(text, ::testing::ContainsRegex("node.port +.*81 +.env SLUICE_NODE_PORT."));
  EXPECT_THAT(text, ::testing::ContainsRegex("job.mode +.*bsp +.default."));
  EXPECT_EQ(EffectiveValues(*loaded).size(), ConfigKeys().size());
}

// docs/configuration.md has a row for every key, with its default, and none for a key that does not exist.
TEST(Config, TheDocumentationNamesEveryKeyWithItsDefault) {
  std::ifstream file("docs/configuration.md");
  std::map<std::string, std::string> documented;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    const size_t name_end = line.find('`', 3);
    const size_t value_begin = line.find('|', name_end) + 2;
    const std::string name = line.substr(3, name_end - 3);
    if (name.find('.') != std::string::npos)
      documented[name] = line.substr(value_begin, line.find(" |", value_begin) - value_begin);
  }
  const proto::Config defaults = DefaultConfig();
  for (const ConfigKey& key : ConfigKeys()) {
    ASSERT_TRUE(documented.contains(key.name)) << key.name << " is missing in docs/configuration.md";
    std::string text = documented[key.name];
    if (text == "-") text = "";
    proto::Config parsed;
    ASSERT_TRUE(SetConfigValue(key, text, &parsed).ok()) << key.name << ": " << text;
    EXPECT_EQ(GetConfigValue(key, parsed), GetConfigValue(key, defaults)) << key.name;
    documented.erase(key.name);
  }
  for (const auto& [name, value] : documented)
    ADD_FAILURE() << "docs/configuration.md describes " << name << ", which is no key";
}

TEST(EditDistance, AgreesWithKnownPairs) {
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("same", "same"), 0u);
  EXPECT_EQ(EditDistance("codce", "codec"), 1u);
  EXPECT_EQ(EditDistance("ba", "acb"), 3u);  // a swapped pair is not torn apart again
  EXPECT_EQ(EditDistance("abcdef", "badcfe"), 3u);
  EXPECT_EQ(Nearest("stat", {"plan", "status", "shards"}), "status");
}

}  // namespace
}  // namespace sluice
