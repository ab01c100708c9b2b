// Codecs of tensors: what workers say of them, and job.codec = auto through the scheduler's core.
#include <cmath>

#include "scheduler/core_harness.h"

namespace sluice::scheduler {
namespace {

using ::testing::HasSubstr;

class CodecsTest : public CoreHarness {
 protected:
  void Begin(const std::string& codec) {
    job_.set_codec(codec);
    job_.set_codec_rules("*.bias=fp16");
    StartJob();
    Tensors(worker_[0], 1, {Spec("big", {1024, 1024}), Spec("small", {10}), Spec("big.bias", {4096})});
    Tick(1);
    ASSERT_EQ(peers_[worker_[0]].plan()->tensors_size(), 3);
  }
  // Rounds of 100 ms, of 4 MiB each over 100 MB/s.
  void Tick(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      clock_.Advance(100 * kMillisecond);
      ++round_;
      Heartbeat(server_);
      for (const SessionId worker : worker_) {
        if (!peers_[worker].open) continue;
        proto::MemberMessage message;
        proto::Heartbeat* beat = message.mutable_heartbeat();
        beat->set_round(round_);
        beat->set_round_at_us(round_ * (slow_ ? 100000 : 50000));
        beat->set_plain_bytes(round_ << 22);
        beat->set_plain_busy_us(round_ * 41943);
        for (const char* codec : {"fp16", "int8", "int4", "topk:0.01"}) {
          beat->add_codec_speeds()->set_codec(codec);
          beat->mutable_codec_speeds(beat->codec_speeds_size() - 1)->set_bytes_per_second(2'000'000'000);
        }
        core_->OnMessage(worker, message);
      }
      core_->OnTick();
      for (const SessionId session : {server_, worker_[0], worker_[1]})
        if (peers_[session].open && peers_[session].plan() != nullptr) Ack(session);
    }
  }
  const proto::Plan& Plan() { return *peers_[worker_[0]].plan(); }
  proto::TensorList List() {
    auto list = core_->ListTensors("j");
    EXPECT_TRUE(list.ok()) << list.status();
    return list.ok() ? *list : proto::TensorList();
  }
  void Measured(SessionId worker, uint32_t tensor, uint64_t round, double residual) {
    proto::MemberMessage message;
    proto::TensorCodecState* state = message.mutable_heartbeat()->add_codecs();
    state->set_tensor(tensor);
    state->set_codec("int8");
    state->set_round(round);
    state->set_residual_ratio(residual);
    core_->OnMessage(worker, message);
  }

  uint64_t round_ = 0;
  bool slow_ = true;
};

TEST_F(CodecsTest, AutoChoosesByPlanForARoundAheadOfAll) {
  Begin("auto");
  EXPECT_EQ(List().tensors(0).codec(), "none");
  Tick(60);
  ASSERT_EQ(Plan().codec_choices_size(), 1);   // the small one and the bias are not chosen for
  const proto::CodecChoice choice = Plan().codec_choices(0);
  EXPECT_EQ(choice.tensor(), 0u);
  EXPECT_EQ(choice.codec(), "topk:0.01");
  EXPECT_LT(choice.from_round(), round_);
  EXPECT_GT(choice.from_round(), 20u);
  const proto::TensorList list = List();
  EXPECT_EQ(list.tensors(0).codec(), "topk:0.01");
  EXPECT_EQ(list.tensors(0).note(), "chosen by auto");
  EXPECT_EQ(list.tensors(1).codec(), "none");
  EXPECT_THAT(list.tensors(1).note(), HasSubstr("codec_min_elements"));
  EXPECT_EQ(list.tensors(2).codec(), "fp16");
  EXPECT_EQ(list.tensors(2).note(), "rule *.bias=fp16");
  std::string why;
  const proto::EventList events = core_->ListEvents(0, 0);
  for (const proto::Event& event : events.events())
    if (event.kind() == "codecs") why = event.text();
  EXPECT_THAT(why, HasSubstr("goodput 100 MB/s: 1 in topk:0.01, instead of 1 in none"));
}

// The rate stays what it was: the trial ends, and the choice is taken back. A tensor keeps its last three choices.
TEST_F(CodecsTest, WhatIsNotWorthItGoesBackAndTheNextSchedulerKnows) {
  Begin("auto");
  Tick(150);
  ASSERT_EQ(Plan().codec_choices_size(), 2);
  EXPECT_EQ(Plan().codec_choices(1).codec(), "none");
  EXPECT_EQ(List().tensors(0).codec(), "none");
  RestartCore();
  server_ = Connect(Again(server_, ServerReg("s0")));
  for (int i = 0; i < 2; ++i) {
    const std::string id = "w" + std::to_string(i);
    worker_[static_cast<size_t>(i)] = Connect(Again(worker_[static_cast<size_t>(i)], WorkerReg(id, i)));
  }
  Tick(200);
  EXPECT_EQ(Plan().codec_choices_size(), 3);
  Tick(800);
  EXPECT_EQ(Plan().codec_choices_size(), 3);
  for (int i = 1; i < 3; ++i) EXPECT_GT(Plan().codec_choices(i).from_round(), Plan().codec_choices(i - 1).from_round());
}

TEST_F(CodecsTest, WithoutAutoNothingIsChosen) {
  Begin("int8");
  Tick(300);
  EXPECT_EQ(Plan().codec_choices_size(), 0);
  EXPECT_EQ(List().tensors(0).codec(), "int8");
}

TEST_F(CodecsTest, AutoByARuleIsForItsTensorsAlone) {
  job_.set_codec("int8");
  job_.set_codec_rules("small=auto");
  StartJob();
  Tensors(worker_[0], 1, {Spec("big", {1024, 1024}), Spec("small", {4096, 64})});
  Tick(100);
  ASSERT_GE(Plan().codec_choices_size(), 1);
  for (const proto::CodecChoice& choice : Plan().codec_choices()) EXPECT_EQ(choice.tensor(), 1u);
}

TEST_F(CodecsTest, ShowsTheWorkerWithTheLargestResidualOfTheLastRound) {
  Begin("int8");
  EXPECT_FALSE(List().tensors(0).has_measured());
  Measured(worker_[0], 0, 1, 5);
  Measured(worker_[1], 0, 1, 7);
  Measured(worker_[0], 0, 1, 6);
  EXPECT_EQ(List().tensors(0).rank(), 1u);
  EXPECT_EQ(List().tensors(0).measured().residual_ratio(), 7);
  Measured(worker_[0], 0, 51, 2);
  EXPECT_EQ(List().tensors(0).measured().residual_ratio(), 2);
  Measured(worker_[1], 0, 1, 100);   // late
  Measured(worker_[1], 99, 51, 1);   // of no tensor
  Measured(worker_[1], 1, 51, std::nan(""));
  EXPECT_EQ(List().tensors(0).measured().residual_ratio(), 2);
  EXPECT_EQ(List().tensors_size(), 3);
}

}  // namespace
}  // namespace sluice::scheduler
