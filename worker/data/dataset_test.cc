#include "worker/data/dataset.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdio>
#include <fstream>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/parsers.h"

namespace sluice::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<Dataset> Csv(std::string_view text, const ReadOptions& options = {}) {
  return ReadCsv(OpenMemory(text, "a.csv").get(), options);
}
absl::StatusOr<Dataset> Libsvm(std::string_view text, const ReadOptions& options = {}) {
  return ReadLibsvm(OpenMemory(text, "a.svm").get(), options);
}
absl::StatusOr<Dataset> Idx(std::string_view images, std::string_view labels, const ReadOptions& options = {}) {
  return ReadIdx(OpenMemory(images, "images").get(), OpenMemory(labels, "labels").get(), options);
}

std::string BigEndian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}
std::string IdxFile(char type, const std::vector<uint32_t>& sizes, std::string_view values) {
  std::string out{0, 0, type, static_cast<char>(sizes.size())};
  for (const uint32_t size : sizes) out += BigEndian(size);
  return out.append(values);
}

std::string Message(const absl::StatusOr<Dataset>& result) { return std::string(result.status().message()); }

TEST(CsvTest, ReadsLabelFirstWithAndWithoutHeader) {
  for (const char* text :
       {"label,a,b\n1,0.5,-2\n0,1e2,3\n", "1,0.5,-2\r\n0,1e2,3", "\"1\",\"0.5\", -2 \n\n0,+1e2,3\n\n"}) {
    const auto data = Csv(text);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->rows, 2);
    EXPECT_EQ(data->features, 2);
    EXPECT_EQ(data->classes, 2);
    EXPECT_THAT(data->x, ElementsAre(0.5, -2, 100, 3));
    EXPECT_THAT(data->y, ElementsAre(1, 0));
  }
}

TEST(CsvTest, AFirstLineThatMayBeADamagedExampleIsSaidToBeTakenForAHeader) {
  testing::internal::CaptureStderr();
  const auto data = Csv("1,0.5,o.25\n0,1,2\n");
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->rows, 1u);
  EXPECT_THAT(said, HasSubstr("a.csv:1 is taken for a header"));
  EXPECT_THAT(said, HasSubstr("\"1,0.5,o.25\""));
  EXPECT_THAT(said, HasSubstr("\"o.25\" is no number, though 2 of its 3 cells are"));
  testing::internal::CaptureStderr();
  ASSERT_TRUE(Csv("label,a,b\n0,1,2\n").ok());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");   // names alone need no word
}

TEST(CsvTest, LabelMayStandElsewhere) {
  ReadOptions options{.label_column = -1, .delimiter = ';', .scale = 2};
  const auto data = Csv("0.5;1.5;3.0\n", options);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->x, ElementsAre(1, 3));
  EXPECT_THAT(data->y, ElementsAre(3));
  options.label_column = 1;
  EXPECT_THAT(Message(Csv("0.5;1.5;3.0\n", options)), HasSubstr("a.csv:1: column 2: \"1.5\" is no label"));
  options.label_column = 3;
  EXPECT_THAT(Message(Csv("0.5;1.5;3.0\n", options)), HasSubstr("no column 3"));
  options.label_column = -4;
  EXPECT_THAT(Message(Csv("0.5;1.5;3.0\n", options)), HasSubstr("no column -4"));
}

TEST(CsvTest, ErrorsNameTheLine) {
  EXPECT_THAT(Message(Csv("1,2\n1,x\n")), HasSubstr("a.csv:2: column 2: \"x\" is no finite number"));
  EXPECT_THAT(Message(Csv("1,2\n\n1,nan\n")), HasSubstr("a.csv:3"));
  EXPECT_THAT(Message(Csv("1,2\n1,inf\n")), HasSubstr("no finite number"));
  EXPECT_THAT(Message(Csv("1,2\n1,1e99\n")), HasSubstr("no finite number"));
  EXPECT_THAT(Message(Csv("1,2\n1\n")), HasSubstr("a.csv:2: 1 columns, but the first line has 2"));
  EXPECT_THAT(Message(Csv("1,2\n1,2,3\n")), HasSubstr("a.csv:2: 3 columns"));
  EXPECT_THAT(Message(Csv("1,2\n-1,2\n")), HasSubstr("a.csv:2: column 1: \"-1\" is no label"));
  EXPECT_THAT(Message(Csv("1\n")), HasSubstr("one column only"));
  EXPECT_THAT(Message(Csv("")), HasSubstr("no example"));
  EXPECT_THAT(Message(Csv("label,a\n")), HasSubstr("no example"));
  EXPECT_THAT(Message(Csv("70000,1\n")), HasSubstr("there are only classes 0 to 65535"));
  EXPECT_THAT(Message(Csv("9999999999,1\n", {.header = ReadOptions::Header::kNo})), HasSubstr("no label"));
  EXPECT_TRUE(Csv("1,1e-60\n").ok());
}

TEST(CsvTest, LimitsHold) {
  ReadOptions options;
  options.limits.max_bytes = 100;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "1,2\n";
  EXPECT_EQ(Csv(text, options).status().code(), absl::StatusCode::kResourceExhausted);
  options.limits = {.max_line_bytes = 1000};
  EXPECT_THAT(Message(Csv("1,2\n1," + std::string(1 << 20, '0'), options)), HasSubstr("a.csv:2: the line is longer"));
  EXPECT_EQ(Csv("1,2\n", {.features = 2}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Csv("5,2\n", {.classes = 5}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Csv("3,2\n", {.classes = 5})->classes, 5);
}

TEST(LibsvmTest, ReadsOneBasedZeroBasedCommentsAndQid) {
  const auto one = Libsvm("# header\n1 1:0.5 3:2 # comment\n0 qid:7 2:1\n\n2\n");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->rows, 3);
  EXPECT_EQ(one->features, 3);
  EXPECT_EQ(one->classes, 3);
  EXPECT_EQ(one->first_index, 1);
  EXPECT_THAT(one->x, ElementsAre(0.5, 0, 2, 0, 1, 0, 0, 0, 0));
  EXPECT_THAT(one->y, ElementsAre(1, 0, 2));
  const auto zero = Libsvm("1 0:0.5 2:2\n0\t1:1\n");
  ASSERT_TRUE(zero.ok()) << zero.status();
  EXPECT_EQ(zero->first_index, 0);
  EXPECT_THAT(zero->x, ElementsAre(0.5, 0, 2, 0, 1, 0));
  // A second file without feature 0 is read like the first.
  const auto second = Libsvm("1 1:4\n", OptionsLike(*zero, {}));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(second->x, ElementsAre(0, 4, 0));
  EXPECT_THAT(Message(Libsvm("1 3:4\n", OptionsLike(*zero, {}))), HasSubstr("a.svm:1: feature 3; there are only 3"));
}

TEST(LibsvmTest, MinusOneIsClassZero) {
  const auto data = Libsvm("-1 1:1\n+1 1:2\n");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->y, ElementsAre(0, 1));
  EXPECT_EQ(data->classes, 2);
  EXPECT_EQ(Libsvm("-1 1:1\n")->classes, 2);
  EXPECT_THAT(Message(Libsvm("-1 1:1\n0 1:2\n")), HasSubstr("a.svm:2: labels -1 and 0"));
}

TEST(LibsvmTest, ErrorsNameTheLine) {
  EXPECT_THAT(Message(Libsvm("1 1:1\nx 1:1\n")), HasSubstr("a.svm:2: \"x\" is no label"));
  EXPECT_THAT(Message(Libsvm("1 1:1\n1 1\n")), HasSubstr("a.svm:2: \"1\" is not INDEX:VALUE"));
  EXPECT_THAT(Message(Libsvm("1 :1\n")), HasSubstr("not INDEX:VALUE"));
  EXPECT_THAT(Message(Libsvm("1 -1:1\n")), HasSubstr("not INDEX:VALUE"));
  EXPECT_THAT(Message(Libsvm("1 99999999999:1\n")), HasSubstr("not INDEX:VALUE"));
  EXPECT_THAT(Message(Libsvm("1 1:\n")), HasSubstr("no finite number"));
  EXPECT_THAT(Message(Libsvm("1 1:nan\n")), HasSubstr("no finite number"));
  EXPECT_THAT(Message(Libsvm("1 2:1 2:1\n")), HasSubstr("indices must rise"));
  EXPECT_THAT(Message(Libsvm("1 0:1\n", {.first_index = 1})), HasSubstr("the first one is 1"));
  EXPECT_THAT(Message(Libsvm("1 4000000000:1\n")), HasSubstr("the limit is"));
  EXPECT_THAT(Message(Libsvm("1\n0\n")), HasSubstr("no example has a feature"));
  EXPECT_THAT(Message(Libsvm("-2 1:1\n")), HasSubstr("no label"));
  ReadOptions options;
  options.limits.max_bytes = 1 << 20;
  EXPECT_EQ(Libsvm("1 16000000:1\n", options).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(IdxTest, ReadsBytesAndScalesThem) {
  const auto data = Idx(IdxFile(8, {2, 1, 2}, std::string_view("\x00\xff\x33\x66", 4)),
                        IdxFile(8, {2}, std::string_view("\x01\x00", 2)));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->features, 2);
  EXPECT_EQ(data->classes, 2);
  EXPECT_THAT(data->x, ElementsAre(0, 255 * (1.0f / 255), 51 * (1.0f / 255), 102 * (1.0f / 255)));
  EXPECT_THAT(data->y, ElementsAre(1, 0));
}

TEST(IdxTest, ReadsOtherTypes) {
  const auto data = Idx(IdxFile(0x0D, {1, 2}, std::string_view("\x3f\x80\x00\x00\xc0\x00\x00\x00", 8)),
                        IdxFile(0x0C, {1}, std::string_view("\x00\x00\x00\x03", 4)));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->x, ElementsAre(1, -2));
  EXPECT_THAT(data->y, ElementsAre(3));
  EXPECT_THAT(Message(Idx(IdxFile(0x0D, {1, 1}, std::string_view("\x7f\xc0\x00\x00", 4)), IdxFile(8, {1}, "\x01"))),
              HasSubstr("value nan at offset 12"));
  EXPECT_THAT(Message(Idx(IdxFile(8, {1, 1}, "x"), IdxFile(9, {1}, "\xff"))), HasSubstr("value -1 at offset 8"));
}

TEST(IdxTest, DamagedFilesAreErrorsWithFileAndOffset) {
  const std::string images = IdxFile(8, {2, 2, 2}, "abcdefgh"), labels = IdxFile(8, {2}, std::string_view("\0\1", 2));
  ASSERT_TRUE(Idx(images, labels).ok());
  for (size_t cut = 0; cut < images.size(); ++cut) {
    const auto data = Idx(images.substr(0, cut), labels);
    EXPECT_EQ(data.status().code(), absl::StatusCode::kDataLoss) << cut;
    EXPECT_THAT(Message(data), HasSubstr("images: the file ends at offset " + std::to_string(cut)));
  }
  for (size_t cut = 0; cut < labels.size(); ++cut) {
    EXPECT_THAT(Message(Idx(images, labels.substr(0, cut))), HasSubstr("labels: the file ends at offset"));
  }
  EXPECT_THAT(Message(Idx(images + "x", labels)), HasSubstr("more data at offset 24"));
  EXPECT_THAT(Message(Idx(labels, images)), HasSubstr("holds labels"));
  EXPECT_THAT(Message(Idx(images, images)), HasSubstr("expected of labels"));
  EXPECT_THAT(Message(Idx(images, IdxFile(8, {3}, "abc"))), HasSubstr("2 examples, but labels has 3 labels"));
  EXPECT_THAT(Message(Idx("PK\3\4....", labels)), HasSubstr("no IDX file: it begins with 0x504b0304"));
  EXPECT_THAT(Message(Idx(IdxFile(8, {2, 0, 2}, ""), labels)), HasSubstr("no pixel"));
  EXPECT_THAT(Message(Idx(IdxFile(8, {0, 2, 2}, ""), IdxFile(8, {0}, ""))), HasSubstr("no example"));
  // Promises that no file keeps.
  const uint32_t huge = 0xFFFFFFFF;
  EXPECT_EQ(Idx(IdxFile(8, {huge, huge, huge, huge}, ""), IdxFile(8, {huge}, "")).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Idx(IdxFile(8, {huge, 8}, "x"), IdxFile(8, {huge}, "x")).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Idx(IdxFile(8, {100000000, 1}, "x"), IdxFile(8, {100000000}, "x")).status().code(),
            absl::StatusCode::kDataLoss);
}

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() : folder_(::testing::TempDir() + "/data-" + std::to_string(::getpid())) {
    EXPECT_EQ(std::system(("mkdir -p " + folder_).c_str()), 0);
  }
  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
    return folder_ + "/" + name;
  }
  std::string WriteGz(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, content.data(), content.size());
    gzclose(file);
    return path;
  }
  std::string folder_;
};

TEST_F(FilesTest, FormatComesFromTheName) {
  Write("train-images-idx3-ubyte", IdxFile(8, {1, 1, 1}, "a"));
  Write("train-labels-idx1-ubyte", IdxFile(8, {1}, "\1"));
  EXPECT_TRUE(ReadDataset(folder_ + "/train-images-idx3-ubyte").ok());
  EXPECT_TRUE(ReadDataset(folder_ + "/train-images-idx3-ubyte," + folder_ + "/train-labels-idx1-ubyte").ok());
  EXPECT_TRUE(ReadDataset(Write("a.csv", "1,2\n")).ok());
  EXPECT_TRUE(ReadDataset(Write("a.libsvm", "1 1:2\n")).ok());
  EXPECT_TRUE(ReadDataset(WriteGz("a.csv.gz", "1,2\n")).ok());
  const std::string unnamed = Write("a.dat", "1,2\n");
  EXPECT_EQ(ReadDataset(unnamed).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ReadDataset(unnamed, {.format = *ParseFormat("csv")}).ok());
  EXPECT_FALSE(ParseFormat("xls").ok());
  EXPECT_THAT(Message(ReadDataset(Write("x-idx3", ""))), HasSubstr("IMAGES,LABELS"));
}

// Regression: --format=libsvm with a mistyped name was told less than --format=auto.
TEST_F(FilesTest, MissingAndUnreadableFilesAreToldAlikeForEveryFormat) {
  using Format = ReadOptions::Format;
  const std::string file = Write("here.csv", "0,1\n1,2\n");
  ASSERT_EQ(::symlink((folder_ + "/loop").c_str(), (folder_ + "/loop").c_str()), 0);
  const auto error = [](const std::string& path, Format format) {
    const absl::Status status = CheckDataFiles(path, format);
    EXPECT_EQ(status, ReadDataset(path, {.format = format}).status());
    return std::string(status.message());
  };
  for (const Format format : {Format::kAuto, Format::kIdx, Format::kCsv, Format::kLibsvm}) {
    SCOPED_TRACE(static_cast<int>(format));
    for (const char* name : {"/none", "/none.csv", "/none-images-idx3-ubyte"}) {
      EXPECT_EQ(CheckDataFiles(folder_ + name, format).code(), absl::StatusCode::kNotFound);
      EXPECT_EQ(error(folder_ + name, format),
                folder_ + name + ": there is no such file or folder; check the name, and that this host has it");
    }
    EXPECT_THAT(error(file + "/below", format), HasSubstr("cannot be found: Not a directory; check each folder"));
    EXPECT_THAT(error(folder_ + "/loop", format), HasSubstr("cannot be found: Too many levels of symbolic links"));
    EXPECT_THAT(error(folder_, format), HasSubstr(folder_ + " is a folder; name a file"));
  }
  EXPECT_THAT(error(folder_ + "/a," + folder_ + "/b", Format::kIdx), HasSubstr(folder_ + "/a: there is no such file"));
  EXPECT_THAT(error(file + "," + folder_ + "/b", Format::kAuto), HasSubstr(folder_ + "/b: there is no such file"));
  EXPECT_THAT(error(file + ",", Format::kIdx), HasSubstr("lacks a file's name"));
  EXPECT_TRUE(CheckDataFiles(file, Format::kCsv).ok());
  ASSERT_EQ(::chmod(file.c_str(), 0), 0);
  if (::access(file.c_str(), R_OK) == 0) GTEST_SKIP() << "this user may read everything";
  EXPECT_EQ(CheckDataFiles(file, Format::kLibsvm).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(error(file, Format::kLibsvm), HasSubstr("cannot be read: Permission denied; let the user"));
}

TEST_F(FilesTest, DamagedGzipIsAnError) {
  std::string text;
  PhiloxRandom random(1);
  for (int i = 0; i < 20000; ++i) text += "1," + std::to_string(random()) + "\n";
  const std::string path = WriteGz("big.csv.gz", text);
  ASSERT_EQ(ReadDataset(path)->rows, 20000);
  std::ifstream in(path, std::ios::binary);
  std::string packed((std::istreambuf_iterator<char>(in)), {});
  const auto cut = ReadDataset(Write("cut.csv.gz", packed.substr(0, packed.size() / 2)));
  EXPECT_EQ(cut.status().code(), absl::StatusCode::kDataLoss) << cut.status();
  EXPECT_THAT(Message(cut), HasSubstr("cut.csv.gz"));
  packed[packed.size() / 2] ^= 1;
  EXPECT_FALSE(ReadDataset(Write("bad.csv.gz", packed)).ok());
}

// Lines longer than the reader's chunks, and chunks that end anywhere.
TEST(LineReaderTest, LinesComeWholeWhereverChunksEnd) {
  PhiloxRandom random(3);
  std::vector<std::string> lines;
  std::string text;
  for (int i = 0; i < 300; ++i) {
    lines.push_back(std::string(random.Below(random.Chance(0.02) ? 900000 : 3000), static_cast<char>('a' + i % 26)));
    text += lines.back() + (i % 3 == 0 ? "\r\n" : "\n");
  }
  const auto source = OpenMemory(text, "text");
  LineReader reader(source.get(), 1 << 20);
  for (const std::string& line : lines) {
    std::string_view got;
    ASSERT_TRUE(*reader.Next(&got));
    ASSERT_EQ(got, line);
  }
  std::string_view got;
  EXPECT_FALSE(*reader.Next(&got));
  EXPECT_EQ(reader.Where(), "text:300");
}

TEST(SplitTailTest, RowsAreKeptInOrder) {
  auto data = *Csv("0,1\n1,2\n0,3\n1,4\n");
  const Dataset tail = SplitTail(&data, 0.25);
  EXPECT_THAT(data.x, ElementsAre(1, 2, 3));
  EXPECT_THAT(tail.x, ElementsAre(4));
  EXPECT_THAT(tail.y, ElementsAre(1));
  EXPECT_EQ(tail.classes, 2);
  EXPECT_EQ(SplitTail(&data, 0).rows, 0);
  EXPECT_EQ(SplitTail(&data, 1).rows, 2);
  EXPECT_EQ(data.rows, 1);
}

}  // namespace
}  // namespace sluice::worker
