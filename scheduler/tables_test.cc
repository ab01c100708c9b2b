// Statistics of tables: sums over servers, what stays after the end, and heartbeats that carry anything.
#include "scheduler/core_harness.h"

namespace sluice::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TablesTest : public CoreHarness {
 protected:
  // Servers s0 and s1, two workers, tensor 0 "w", table 1 "users" of 16 segments, table 2 "items".
  void StartTables() {
    config_.set_servers(2);
    StartCore();
    for (const char* id : {"s0", "s1"}) servers_.push_back(Connect(ServerReg(id)));
    for (uint32_t i = 0; i < 2; ++i) worker_.push_back(Connect(WorkerReg("w" + std::to_string(i), static_cast<int>(i))));
    proto::TensorSpec users = Spec("users", {}), items = Spec("items", {});
    users.mutable_table()->set_dim(8);
    users.mutable_table()->set_dtype("bf16");
    users.mutable_table()->mutable_optimizer()->set_kind("adagrad");
    users.mutable_table()->set_segments(16);
    items.mutable_table()->set_dim(1);
    Tensors(worker_[0], 1, {Spec("w", {4}), users, items});
    Run(kSecond, {servers_[0], servers_[1], worker_[0], worker_[1]});
    ASSERT_EQ(peers_[worker_[0]].plan()->tensors_size(), 3);
  }
  proto::TableState State(uint32_t tensor, uint32_t segments, uint64_t rows) {
    proto::TableState state;
    state.set_job(1);
    state.set_job_uid(peers_[worker_[0]].plan()->uid());
    state.set_tensor(tensor);
    state.set_segments(segments);
    state.mutable_counts()->set_rows(rows);
    return state;
  }
  static void AddHot(proto::TableState* state, uint64_t id, uint64_t count) {
    state->add_hot()->set_id(id);
    state->mutable_hot(state->hot_size() - 1)->set_count(count);
  }
  void Say(SessionId session, const std::vector<proto::TableState>& tables) {
    proto::MemberMessage message;
    message.mutable_heartbeat()->set_sequence(1);
    for (const proto::TableState& table : tables) *message.mutable_heartbeat()->add_tables() = table;
    core_->OnMessage(session, message);
  }
  proto::TableList List() {
    auto list = core_->ListTables("j");
    EXPECT_TRUE(list.ok()) << list.status();
    return list.ok() ? *list : proto::TableList();
  }
  static std::vector<std::pair<uint64_t, uint64_t>> Hot(const proto::TableStatus& table) {
    std::vector<std::pair<uint64_t, uint64_t>> hot;
    for (const proto::HotId& one : table.hot()) hot.emplace_back(one.id(), one.count());
    return hot;
  }

  std::vector<SessionId> servers_;
};

TEST_F(TablesTest, SumsWhatServersSaidLast) {
  StartTables();
  proto::TableState first = State(1, 8, 10), second = State(1, 8, 5);
  auto* counts = first.mutable_counts();
  counts->set_bytes(1);
  counts->set_reads(6);
  counts->set_hits(2);
  counts->set_updates(3);
  counts->set_created(4);
  counts->set_evicted_age(5);
  counts->set_evicted_bound(6);
  counts->set_dropped_zero(7);
  counts->set_not_admitted(8);
  counts->set_no_room(9);
  counts->set_nonfinite(10);
  AddHot(&first, 7, 16);
  AddHot(&first, 1, 8);
  *second.mutable_counts() = *counts;
  second.mutable_counts()->set_hits(4);
  AddHot(&second, 9, 24);
  AddHot(&second, 8, 8);
  Say(servers_[0], {State(1, 8, 99)});
  Say(servers_[0], {first});
  EXPECT_EQ(List().tables(0).segments_reported(), 8u);
  Say(servers_[1], {second, State(2, 4, 1)});

  const proto::TableList list = List();
  EXPECT_EQ(list.job(), "j");
  ASSERT_EQ(list.tables_size(), 2);
  const proto::TableStatus& users = list.tables(0);
  EXPECT_EQ(users.name(), "users");
  EXPECT_EQ(users.dim(), 8u);
  EXPECT_EQ(users.dtype(), "bf16");
  EXPECT_EQ(users.optimizer(), "adagrad");
  EXPECT_EQ(users.segments(), 16u);
  EXPECT_EQ(users.segments_reported(), 16u);
  const proto::TableCounts& c = users.counts();
  EXPECT_THAT((std::vector<uint64_t>{c.rows(), c.bytes(), c.reads(), c.hits(), c.updates(), c.created(), c.evicted_age(),
                                     c.evicted_bound(), c.dropped_zero(), c.not_admitted(), c.no_room(), c.nonfinite()}),
              ElementsAre(20, 2, 12, 6, 6, 8, 10, 12, 14, 16, 18, 20));
  EXPECT_EQ(users.hit_rate(), 0.5);
  EXPECT_THAT(Hot(users), ElementsAre(std::pair(9, 24), std::pair(7, 16), std::pair(1, 8), std::pair(8, 8)));
  const proto::TableStatus& items = list.tables(1);
  EXPECT_EQ(items.name(), "items");
  EXPECT_EQ(items.dtype(), "fp32");
  EXPECT_EQ(items.optimizer(), "sgd");
  EXPECT_EQ(items.segments_reported(), 4u);
  EXPECT_EQ(items.hit_rate(), 0);
}

TEST_F(TablesTest, AJobWithoutTablesHasAnEmptyListAndNoJobIsAnError) {
  StartJob();
  EXPECT_THAT(List().tables(), IsEmpty());
  EXPECT_EQ(List().job(), "j");
  EXPECT_THAT(core_->ListTables("k").status().ToString(), HasSubstr("NOT_FOUND"));
}

TEST_F(TablesTest, TheLastNumbersStayWhenTheJobHasEndedAndServersDropIt) {
  StartTables();
  Say(servers_[0], {State(1, 8, 10)});
  ASSERT_TRUE(core_->AbortJob("j", "enough").ok());
  Say(servers_[0], {});
  EXPECT_EQ(List().tables(0).counts().rows(), 10u);
}

TEST_F(TablesTest, AHeartbeatMayCarryAnything) {
  StartTables();
  proto::TableState other_job = State(1, 1, 1), other_uid = State(1, 1, 1);
  other_job.set_job(9);
  other_uid.set_job_uid(3);
  proto::TableState huge = State(1, UINT32_MAX, UINT64_MAX);
  huge.mutable_counts()->set_reads(1);
  huge.mutable_counts()->set_hits(UINT64_MAX);
  for (uint64_t id = 0; id < 5000; ++id) AddHot(&huge, id / 2, UINT64_MAX);
  Say(servers_[0], {other_job, other_uid, State(0, 1, 1), State(3, 1, 1), State(UINT32_MAX, 1, 1), huge, State(1, 1, 1)});
  Say(servers_[1], {huge});
  const proto::TableStatus users = List().tables(0);
  EXPECT_EQ(users.segments_reported(), users.segments());
  EXPECT_EQ(users.counts().rows(), UINT64_MAX);
  EXPECT_EQ(users.hit_rate(), 1.0);
  EXPECT_THAT(Hot(users), ElementsAre(std::pair(0, UINT64_MAX), std::pair(1, UINT64_MAX), std::pair(2, UINT64_MAX),
                                      std::pair(3, UINT64_MAX)));
  EXPECT_EQ(List().tables(1).segments_reported(), 0u);

  // No more than so many tables are looked at.
  std::vector<proto::TableState> many(256, State(0, 1, 1));
  many.push_back(State(2, 1, 1));
  Say(servers_[0], many);
  EXPECT_EQ(List().tables(1).segments_reported(), 0u);
  many.erase(many.begin());
  Say(servers_[0], many);
  EXPECT_EQ(List().tables(1).segments_reported(), 1u);
}

TEST_F(TablesTest, WorkersAndServersThatOwnNothingSayNothingOfTables) {
  StartTables();
  const SessionId late = Connect(ServerReg("s2"));
  Say(late, {State(1, 8, 10)});
  Say(worker_[0], {State(1, 8, 10)});
  EXPECT_EQ(List().tables(0).segments_reported(), 0u);
}

}  // namespace
}  // namespace sluice::scheduler
