// A trainer that calls everything that worker/client.h says about tables, as one of two workers under BSP, and compares what
// comes back with what it must be. Prints one line for each check; ends with 1 after the first that fails.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "worker/client.h"

namespace {

using namespace sluice;   // NOLINT: a test

void Check(bool holds, const std::string& what) {
  std::printf("%s: %s\n", holds ? "ok" : "FAILED", what.c_str());
  std::fflush(stdout);
  if (!holds) std::exit(1);
}
void CheckOk(Handle handle, const std::string& what) {
  const auto done = handle.Wait();
  Check(done.ok(), what + (done.ok() ? "" : ": " + done.status().ToString()));
}
void CheckRefused(Handle handle, const std::string& text, const std::string& what) {
  const auto done = handle.Wait();
  Check(!done.ok() && done.status().message().find(text) != std::string::npos,
        what + ": " + (done.ok() ? "OK" : done.status().ToString()));
}

}  // namespace

int main(int argc, char** argv) {
  auto connected = Client::ConnectFromFlags(&argc, argv);
  Check(connected.ok(), "connects" + (connected.ok() ? "" : ": " + connected.status().ToString()));
  Client& client = **connected;
  TableSpec spec;
  spec.name = "users";
  spec.dim = 2;
  spec.initializer = "uniform";
  spec.init_scale = 1;
  spec.optimizer.rate = 1;
  auto users = client.RegisterTable(spec);
  Check(users.ok(), "registers");
  TableSpec other = spec;
  other.dim = 3;
  const auto twin = client.RegisterTable(other);
  Check(!twin.ok() && twin.status().message().find("users") != std::string::npos, "a twin is refused");

  // Unseen rows: the same on both workers, by id alone.
  const std::vector<uint64_t> ids = {7, 0xFFFFFFFFFFFFFFFF, 7, 0};
  std::vector<float> start(8), rows(8), bags(6);
  CheckOk(client.PullRows(*users, ids, start), "pulls rows that nobody has pushed");
  Check(start[0] == start[4] && start[1] == start[5] && start[0] != start[2], "duplicates get the same row");

  // Both push: the mean over two workers of the sum over duplicates. Rank 0: 7 twice; rank 1: 7 once and 0.
  const bool first = client.rank() == 0;
  const std::vector<uint64_t> pushed = first ? std::vector<uint64_t>{7, 9, 7} : std::vector<uint64_t>{0, 7};
  const std::vector<float> gradients = first ? std::vector<float>{1, 2, 8, 8, 3, 4} : std::vector<float>{6, 6, 2, 2};
  std::vector<float> back(pushed.size() * 2);
  CheckOk(client.PushPullRows(*users, pushed, gradients, back), "pushes and pulls");
  const float x = start[0] - 3.0f, y = start[1] - 4.0f;   // (1 + 3 + 2) / 2, (2 + 4 + 2) / 2
  const size_t seven = first ? 0 : 2;
  Check(back[seven] == x && back[seven + 1] == y, "sees its own round and the other's");
  CheckOk(client.PullRows(*users, ids, rows), "pulls again");
  Check(rows[0] == x && rows[4] == x && rows[2] == start[2], "rows that were not pushed stay");
  Check(rows[6] == start[6] - 3.0f, "the other worker's row");
  Check(client.NextRound(*users) == 1, "one round");

  // Bags: {7, max}, {}, {7, 0}.
  const std::vector<uint32_t> offsets = {0, 2, 2};
  CheckOk(client.LookupRows(*users, ids, offsets, Pooling::kSum, bags), "looks up sums");
  Check(bags[0] == rows[0] + rows[2] && bags[2] == 0 && bags[3] == 0 && bags[4] == rows[4] + rows[6], "sums");
  CheckOk(client.LookupRows(*users, ids, offsets, Pooling::kMean, bags), "looks up means");
  Check(bags[0] == (rows[0] + rows[2]) / 2, "means");
  CheckRefused(client.LookupRows(*users, ids, std::vector<uint32_t>{0, 3, 2}, Pooling::kSum, bags), "bag 1",
               "offsets that fall are refused");

  // Bad input changes nothing and uses no round up.
  std::vector<float> nan = gradients;
  nan[1] = std::numeric_limits<float>::quiet_NaN();
  CheckRefused(client.PushRows(*users, pushed, nan), "table users: value 1 of row id " + std::to_string(pushed[0]),
               "NaN is refused by table and id");
  CheckRefused(client.PushRows(*users, pushed, std::vector<float>(3)), "gradients", "a wrong size is refused");
  CheckRefused(client.PullRows(*users, ids, std::span<float>(rows).first(6)), "rows of 2", "a wrong output is refused");
  CheckRefused(client.PullRows(Table{99, 2}, ids, rows), "not registered", "an unknown table is refused");
  CheckOk(client.PushRows(*users, {}, {}), "pushes no rows: a round all the same");
  Check(client.NextRound(*users) == 2, "two rounds");

  // A vocabulary that reads unknown ids as zeros; a cache that serves for a round of its own.
  TableSpec words;
  words.name = "words";
  words.dim = 1;
  words.vocabulary = 10;
  words.unknown_as_zero = true;
  words.initializer = "uniform";
  words.optimizer.rate = 1;
  words.cache_rows = 100;
  words.cache_staleness = 1;
  auto table = client.RegisterTable(words);
  Check(table.ok(), "registers words");
  const std::vector<uint64_t> some = {3, 10, 4};
  std::vector<float> before(3), after(3);
  CheckOk(client.PrefetchRows(*table, some), "prefetches");
  CheckOk(client.PullRows(*table, some, before), "pulls from the cache");
  Check(before[1] == 0 && before[0] != 0, "beyond the vocabulary is zero");
  CheckOk(client.PushRows(*table, some, std::vector<float>{1, 1, 1}), "pushes words");
  CheckOk(client.PullRows(*table, some, after), "pulls one round later");
  Check(after == before, "the cache may be one round old");
  CheckOk(client.PushRows(*table, some, std::vector<float>{1, 1, 1}), "pushes words again");
  CheckOk(client.PullRows(*table, some, after), "pulls two rounds later");
  const float expected = (before[0] - 1.0f) - 1.0f;
  Check(after[0] == expected && after[1] == 0, "the cache is not older than that");

  // Gradients in int8: one value of each pair is no multiple of the scale, and its error goes into the next push.
  TableSpec coded;
  coded.name = "coded";
  coded.dim = 2;
  coded.codec = "int8";
  coded.residual_rows = 10;
  coded.optimizer.rate = 1;
  TableSpec picky = coded;
  picky.name = "picky";
  picky.codec = "topk:0.5";
  const auto refused = client.RegisterTable(picky);
  Check(!refused.ok() && refused.status().message().find("rows go as none, fp16, bf16, mxfp8, int8 or int4") != std::string::npos,
        "top-k of rows is refused: " + refused.status().ToString());
  auto bytes = client.RegisterTable(coded);
  Check(bytes.ok(), "registers coded" + (bytes.ok() ? "" : ": " + bytes.status().ToString()));
  const std::vector<uint64_t> pair = {21, 42};
  for (int round = 0; round < 20; ++round) {
    CheckOk(client.PushRows(*bytes, pair, std::vector<float>{1, 0.3f, 0.3f, 1}), "pushes in int8");
  }
  std::vector<float> sums(4);
  CheckOk(client.PullRows(*bytes, pair, sums), "pulls what was pushed in int8");
  Check(std::abs(sums[0] + 20) < 0.01 && std::abs(sums[3] + 20) < 0.01, "whole multiples");
  // 0.3 is sent as 38 / 127: without residuals 20 rounds would be off by 0.016.
  Check(std::abs(sums[1] + 6) < 0.005 && std::abs(sums[2] + 6) < 0.005, "errors do not add up");

  // Many ids in one call, and a wait that ends.
  std::vector<uint64_t> many(300000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = i * 0x9E3779B97F4A7C15u;
  std::vector<float> wide(many.size() * 2);
  CheckOk(client.PullRows(*users, many, wide), "pulls 300,000 rows in one call");
  Check(std::abs(wide[12345]) <= 1 && wide[12345] != 0, "and they are there");
  const std::vector<float> ones(wide.size(), 1.0f);
  std::vector<float> moved(wide.size());
  CheckOk(client.PushPullRows(*users, many, ones, moved), "pushes 300,000 rows in one call");
  size_t wrong = 0;
  for (size_t i = 0; i < moved.size(); ++i) wrong += moved[i] != wide[i] - 1.0f;
  Check(wrong == 0, "and each has moved, to the bit");
  const Status finished = client.Finish();
  Check(finished.ok(), "finishes" + (finished.ok() ? "" : ": " + finished.ToString()));
  return 0;
}
