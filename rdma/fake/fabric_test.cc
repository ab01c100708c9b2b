// The fabric behaves as libibverbs and RC queue pairs do, good and bad.
#include "rdma/fake/fabric.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace sluice::rdma::fake {
namespace {

constexpr int kInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kRts =
    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

bool Readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

// One end: everything of one QP, by hand.
struct End {
  End(Host& h, const std::string& device_name = "fake0", int cq_entries = 64, uint32_t sends = 16) : host(h) {
    int count = 0;
    ibv_device** list = host.GetDeviceList(&count);
    for (int i = 0; i < count; ++i) {
      if (device_name == host.GetDeviceName(list[i])) context = host.OpenDevice(list[i]);
    }
    host.FreeDeviceList(list);
    pd = host.AllocPd(context);
    channel = host.CreateCompChannel(context);
    cq = host.CreateCq(context, cq_entries, channel);
    memory.resize(4096);
    mr = host.RegMr(pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {sends, 16, 1, 1, 64};
    qp = host.CreateQp(pd, &init);
    device = device_name;
  }
  ~End() {
    EXPECT_EQ(qp == nullptr ? 0 : host.DestroyQp(qp), 0);
    EXPECT_EQ(mr == nullptr ? 0 : host.DeregMr(mr), 0);
    EXPECT_EQ(host.DestroyCq(cq), 0);
    EXPECT_EQ(host.DestroyCompChannel(channel), 0);
    EXPECT_EQ(host.DeallocPd(pd), 0);
    EXPECT_EQ(host.CloseDevice(context), 0);
  }

  int ToInit(unsigned access = IBV_ACCESS_REMOTE_WRITE) {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_INIT;
    to.port_num = 1;
    to.qp_access_flags = access;
    return host.ModifyQp(qp, &to, kInit);
  }
  int ToRtr(const End& peer, uint32_t psn = 7) {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_RTR;
    to.path_mtu = IBV_MTU_1024;
    to.dest_qp_num = peer.qp->qp_num;
    to.rq_psn = psn;
    to.ah_attr.port_num = 1;
    to.ah_attr.is_global = 1;
    to.ah_attr.grh.sgid_index = 2;
    to.ah_attr.grh.hop_limit = 1;
    const Rail rail = peer.host.RailOf(peer.device);
    std::memcpy(to.ah_attr.grh.dgid.raw, rail.gid.data(), 16);
    return host.ModifyQp(qp, &to, kRtr);
  }
  int ToRts(uint8_t rnr_retry = 7, uint32_t psn = 7) {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_RTS;
    to.sq_psn = psn;
    to.rnr_retry = rnr_retry;
    return host.ModifyQp(qp, &to, kRts);
  }

  int Receive(uint64_t id, uint32_t bytes = 256, uint64_t at = 2048) {
    ibv_sge sge{reinterpret_cast<uintptr_t>(memory.data()) + at, bytes, mr->lkey};
    ibv_recv_wr request{};
    request.wr_id = id;
    request.sg_list = &sge;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return host.PostRecv(qp, &request, &bad);
  }
  int Send(uint64_t id, uint32_t bytes, bool signalled = true, unsigned flags = 0) {
    ibv_send_wr request{};
    request.opcode = IBV_WR_SEND;
    return Post(request, id, bytes, signalled, flags);
  }
  int Write(uint64_t id, uint32_t bytes, const End& to, uint64_t at = 0, bool signalled = true, bool notice = false) {
    ibv_send_wr request{};
    request.opcode = notice ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    request.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(to.memory.data()) + at;
    request.wr.rdma.rkey = to.mr == nullptr ? 0 : to.mr->rkey;
    request.imm_data = 99;
    return Post(request, id, bytes, signalled, 0);
  }
  int Post(ibv_send_wr request, uint64_t id, uint32_t bytes, bool signalled, unsigned flags) {
    ibv_sge sge{reinterpret_cast<uintptr_t>(memory.data()), bytes, mr == nullptr ? 0 : mr->lkey};
    request.wr_id = id;
    request.sg_list = &sge;
    request.num_sge = bytes == 0 ? 0 : 1;
    request.send_flags = flags | (signalled ? unsigned{IBV_SEND_SIGNALED} : 0u);
    ibv_send_wr* bad = nullptr;
    return host.PostSend(qp, &request, &bad);
  }

  std::vector<ibv_wc> Poll() {
    std::vector<ibv_wc> all;
    ibv_wc wc;
    while (host.PollCq(cq, 1, &wc) == 1) all.push_back(wc);
    return all;
  }
  std::vector<std::pair<uint64_t, int>> Statuses() {
    std::vector<std::pair<uint64_t, int>> all;
    for (const ibv_wc& wc : Poll()) all.emplace_back(wc.wr_id, wc.status);
    return all;
  }

  Host& host;
  std::string device;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  ibv_qp* qp = nullptr;
  std::vector<std::byte> memory;
};

using Statuses = std::vector<std::pair<uint64_t, int>>;

class FabricTest : public testing::Test {
 protected:
  explicit FabricTest(const FabricOptions& options = {})
      : fabric(options), a(fabric.AddHost("a")), b(fabric.AddHost("b")) {
    a.AddDevice({.name = "fake0", .address = "10.0.0.1"});
    b.AddDevice({.name = "fake0", .address = "10.0.0.2"});
  }
  void Connect(End& x, End& y, uint8_t rnr_retry = 7) {
    ASSERT_EQ(x.ToInit(), 0);
    ASSERT_EQ(y.ToInit(), 0);
    ASSERT_EQ(x.ToRtr(y), 0);
    ASSERT_EQ(y.ToRtr(x), 0);
    ASSERT_EQ(x.ToRts(rnr_retry), 0);
    ASSERT_EQ(y.ToRts(rnr_retry), 0);
  }
  PortName A() { return {&a}; }
  PortName B() { return {&b}; }

  Fabric fabric;
  Host& a;
  Host& b;
};

class SteppedTest : public FabricTest {
 protected:
  SteppedTest() : FabricTest({.mode = Mode::kStepped}) {}
};

TEST_F(FabricTest, EachHostListsItsOwnDevices) {
  a.AddDevice({.name = "fake1", .address = "10.0.1.1"});
  int count = 0;
  ibv_device** list = a.GetDeviceList(&count);
  EXPECT_EQ(count, 2);
  EXPECT_STREQ(a.GetDeviceName(list[1]), "fake1");
  a.FreeDeviceList(list);
  list = b.GetDeviceList(&count);
  EXPECT_EQ(count, 1);
  b.FreeDeviceList(list);
}

TEST_F(FabricTest, StatesAreChecked) {
  End x(a), y(b);
  ibv_qp_attr reset{};
  reset.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(a.ModifyQp(x.qp, &reset, IBV_QP_STATE), EINVAL);
  EXPECT_EQ(fabric.misuses().size(), 1u);
  EXPECT_EQ(x.Receive(1), EINVAL);
  EXPECT_EQ(x.ToRtr(y), EINVAL);
  ASSERT_EQ(x.ToInit(), 0);
  EXPECT_EQ(x.Receive(1), 0);
  EXPECT_EQ(x.ToRts(), EINVAL);
  EXPECT_EQ(x.Send(2, 8), EINVAL);
  ibv_qp_attr half{};
  half.qp_state = IBV_QPS_RTR;
  EXPECT_EQ(a.ModifyQp(x.qp, &half, kRtr & ~IBV_QP_MIN_RNR_TIMER), EINVAL);
  EXPECT_EQ(x.ToRtr(y), 0);
  EXPECT_EQ(x.ToRts(), 0);
}

TEST_F(FabricTest, SendLandsInAReceive) {
  End x(a), y(b);
  Connect(x, y);
  ASSERT_EQ(y.Receive(5), 0);
  x.memory[0] = std::byte{42};
  ASSERT_EQ(x.Send(6, 100), 0);
  const auto at_y = y.Poll();
  ASSERT_EQ(at_y.size(), 1u);
  EXPECT_EQ(at_y[0].wr_id, 5u);
  EXPECT_EQ(at_y[0].opcode, IBV_WC_RECV);
  EXPECT_EQ(at_y[0].byte_len, 100u);
  EXPECT_EQ(at_y[0].qp_num, y.qp->qp_num);
  EXPECT_EQ(y.memory[2048], std::byte{42});
  EXPECT_EQ(x.Statuses(), (Statuses{{6, IBV_WC_SUCCESS}}));
}

TEST_F(FabricTest, ASendWaitsForItsReceive) {
  End x(a), y(b);
  Connect(x, y);
  ASSERT_EQ(x.Send(1, 8), 0);
  EXPECT_TRUE(x.Poll().empty());
  ASSERT_EQ(y.Receive(2), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{1, IBV_WC_SUCCESS}}));
}

TEST_F(FabricTest, WithoutAReceiveAndRetriesTheSenderBreaks) {
  End x(a), y(b);
  Connect(x, y, /*rnr_retry=*/2);
  ASSERT_EQ(x.Send(1, 8), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{1, IBV_WC_RNR_RETRY_EXC_ERR}}));
  EXPECT_EQ(x.qp->state, IBV_QPS_ERR);
}

TEST_F(FabricTest, InlineDataIsCopiedAndCapped) {
  fabric.SetMode(Mode::kStepped);
  End x(a), y(b);
  Connect(x, y);
  ASSERT_EQ(y.Receive(1), 0);
  x.memory[0] = std::byte{1};
  ASSERT_EQ(x.Send(2, 64, true, IBV_SEND_INLINE), 0);
  x.memory[0] = std::byte{2};
  fabric.Run();
  EXPECT_EQ(y.memory[2048], std::byte{1});
  EXPECT_EQ(x.Send(3, 65, true, IBV_SEND_INLINE), EINVAL);
}

TEST_F(FabricTest, WriteAndEmptyNotice) {
  End x(a), y(b);
  Connect(x, y);
  ASSERT_EQ(y.Receive(1), 0);
  x.memory[99] = std::byte{7};
  ASSERT_EQ(x.Write(2, 100, y, 10, /*signalled=*/false), 0);
  EXPECT_TRUE(x.Poll().empty());
  EXPECT_EQ(y.memory[109], std::byte{7});
  ASSERT_EQ(x.Write(3, 0, y, 0, true, /*notice=*/true), 0);
  const auto at_y = y.Poll();
  ASSERT_EQ(at_y.size(), 1u);
  EXPECT_EQ(at_y[0].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(at_y[0].imm_data, 99u);
  EXPECT_EQ(at_y[0].byte_len, 0u);
  EXPECT_EQ(x.Statuses(), (Statuses{{3, IBV_WC_SUCCESS}}));
}

TEST_F(FabricTest, AWriteOutsideBreaksBothEnds) {
  End x(a), y(b);
  Connect(x, y);
  ASSERT_EQ(y.Receive(1), 0);
  ASSERT_EQ(x.Write(2, 100, y, 4000), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{2, IBV_WC_REM_ACCESS_ERR}}));
  EXPECT_EQ(y.Statuses(), (Statuses{{1, IBV_WC_WR_FLUSH_ERR}}));
  EXPECT_EQ(y.qp->state, IBV_QPS_ERR);
  ASSERT_TRUE(Readable(y.context->async_fd));
  ibv_async_event event{};
  ASSERT_EQ(b.GetAsyncEvent(y.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
  b.AckAsyncEvent(&event);
  EXPECT_FALSE(Readable(y.context->async_fd));
}

TEST_F(FabricTest, RightsOfRegionAndQpAreChecked) {
  End x(a), y(b);
  ASSERT_EQ(x.ToInit(), 0);
  ASSERT_EQ(y.ToInit(/*access=*/0), 0);
  ASSERT_EQ(x.ToRtr(y), 0);
  ASSERT_EQ(y.ToRtr(x), 0);
  ASSERT_EQ(x.ToRts(), 0);
  ASSERT_EQ(x.Write(1, 8, y), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{1, IBV_WC_REM_ACCESS_ERR}}));
}

TEST_F(SteppedTest, ARegionRevokedInTheMiddleOfAWriteEndsIt) {
  a.SetBytesPerStep("fake0", 40);
  End x(a), y(b);
  Connect(x, y);
  x.memory.assign(x.memory.size(), std::byte{1});
  ASSERT_EQ(x.Write(1, 100, y), 0);
  EXPECT_EQ(fabric.Step(2), 2u);
  EXPECT_EQ(y.memory[79], std::byte{1});
  EXPECT_EQ(y.memory[80], std::byte{0});
  ASSERT_EQ(b.DeregMr(y.mr), 0);
  y.mr = nullptr;
  fabric.Run();
  EXPECT_EQ(x.Statuses(), (Statuses{{1, IBV_WC_REM_ACCESS_ERR}}));
  EXPECT_EQ(y.memory[80], std::byte{0});
}

TEST_F(FabricTest, LocalMemoryMustBeRegistered) {
  End x(a), y(b);
  Connect(x, y);
  ASSERT_EQ(y.Receive(1), 0);
  ASSERT_EQ(a.DeregMr(x.mr), 0);
  x.mr = nullptr;
  ASSERT_EQ(x.Send(2, 8), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{2, IBV_WC_LOC_PROT_ERR}}));
}

TEST_F(FabricTest, AReceiveTooShortBreaksBothEnds) {
  End x(a), y(b);
  Connect(x, y);
  ASSERT_EQ(y.Receive(1, 10), 0);
  ASSERT_EQ(x.Send(2, 11), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{2, IBV_WC_REM_INV_REQ_ERR}}));
  EXPECT_EQ(y.Statuses(), (Statuses{{1, IBV_WC_LOC_LEN_ERR}}));
}

TEST_F(FabricTest, ErrFlushesBothQueuesInOrder) {
  End x(a), y(b);
  Connect(x, y);
  ASSERT_EQ(x.Receive(1), 0);
  ASSERT_EQ(x.Send(2, 8, false), 0);
  ASSERT_EQ(x.Send(3, 8, false), 0);
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(a.ModifyQp(x.qp, &to, IBV_QP_STATE), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{2, IBV_WC_WR_FLUSH_ERR}, {3, IBV_WC_WR_FLUSH_ERR}, {1, IBV_WC_WR_FLUSH_ERR}}));
  ASSERT_EQ(x.Send(4, 8, false), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{4, IBV_WC_WR_FLUSH_ERR}}));
  EXPECT_EQ(a.ModifyQp(x.qp, &to, IBV_QP_STATE), 0);
}

TEST_F(FabricTest, SlotsOfTheSendQueueComeBackWithPolledCompletionsOnly) {
  End x(a, "fake0", 64, /*sends=*/4), y(b);
  Connect(x, y);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(x.Write(i, 8, y, 0, /*signalled=*/i == 3), 0);
  EXPECT_EQ(x.Write(9, 8, y), ENOMEM);
  EXPECT_EQ(x.Statuses(), (Statuses{{3, IBV_WC_SUCCESS}}));
  EXPECT_EQ(x.Write(10, 8, y, 0, false), 0);
  EXPECT_EQ(fabric.misuses().size(), 1u);
}

TEST_F(FabricTest, AFullCompletionQueueIsLost) {
  End x(a, "fake0", /*cq_entries=*/2), y(b);
  Connect(x, y);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(x.Write(i, 8, y), 0);
  EXPECT_EQ(x.qp->state, IBV_QPS_ERR);
  ibv_async_event event{};
  ASSERT_EQ(a.GetAsyncEvent(x.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(x.Poll().size(), 2u);
  ibv_wc wc;
  EXPECT_EQ(a.PollCq(x.cq, 1, &wc), -1);
}

TEST_F(FabricTest, EventsComeOnceAnArmingAndOnlyForWhatComesAfter) {
  End x(a), y(b);
  Connect(x, y);
  ASSERT_EQ(x.Write(1, 8, y), 0);
  EXPECT_FALSE(Readable(x.channel->fd));
  ASSERT_EQ(a.ReqNotifyCq(x.cq, 0), 0);
  EXPECT_FALSE(Readable(x.channel->fd));
  ASSERT_EQ(x.Write(2, 8, y), 0);
  ASSERT_EQ(x.Write(3, 8, y), 0);
  ASSERT_TRUE(Readable(x.channel->fd));
  ibv_cq* cq = nullptr;
  ASSERT_EQ(a.GetCqEvent(x.channel, &cq), 0);
  EXPECT_EQ(cq, x.cq);
  EXPECT_EQ(a.GetCqEvent(x.channel, &cq), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(a.DestroyCq(x.cq), EBUSY);  // a QP, and an event
  a.AckCqEvents(x.cq, 1);
  EXPECT_EQ(x.Poll().size(), 3u);
}

TEST_F(FabricTest, AnotherPacketSequenceReachesNobody) {
  End x(a), y(b);
  ASSERT_EQ(x.ToInit(), 0);
  ASSERT_EQ(y.ToInit(), 0);
  ASSERT_EQ(x.ToRtr(y), 0);
  ASSERT_EQ(y.ToRtr(x, /*psn=*/8), 0);
  ASSERT_EQ(x.ToRts(), 0);
  ASSERT_EQ(x.Write(1, 8, y), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{1, IBV_WC_RETRY_EXC_ERR}}));
}

TEST_F(FabricTest, APeerThatIsNotReadyIsWaitedFor) {
  End x(a), y(b);
  ASSERT_EQ(x.ToInit(), 0);
  ASSERT_EQ(y.ToInit(), 0);
  ASSERT_EQ(x.ToRtr(y), 0);
  ASSERT_EQ(x.ToRts(), 0);
  ASSERT_EQ(x.Write(1, 8, y), 0);
  EXPECT_TRUE(x.Poll().empty());
  ASSERT_EQ(y.ToRtr(x), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{1, IBV_WC_SUCCESS}}));
}

TEST_F(FabricTest, ADestroyedPeerIsNotReached) {
  End x(a), y(b);
  Connect(x, y);
  ASSERT_EQ(b.DestroyQp(y.qp), 0);
  y.qp = nullptr;
  ASSERT_EQ(x.Write(1, 8, y), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{1, IBV_WC_RETRY_EXC_ERR}}));
}

TEST_F(FabricTest, CutsFailWaitAndCanBeMended) {
  End x(a), y(b);
  Connect(x, y);
  fabric.CutPath(A(), B(), Cut::kSilent);
  ASSERT_EQ(x.Write(1, 8, y), 0);
  EXPECT_TRUE(x.Poll().empty());
  fabric.MendPath(A(), B());
  EXPECT_EQ(x.Statuses(), (Statuses{{1, IBV_WC_SUCCESS}}));
  fabric.CutPath(A(), B(), Cut::kSilent);
  ASSERT_EQ(x.Write(2, 8, y), 0);
  ASSERT_EQ(x.Write(3, 8, y), 0);
  fabric.ExpireRetries();
  EXPECT_EQ(x.Statuses(), (Statuses{{2, IBV_WC_RETRY_EXC_ERR}, {3, IBV_WC_WR_FLUSH_ERR}}));
}

TEST_F(FabricTest, ALostAcknowledgementIsAnErrorOfWhatHasLanded) {
  End x(a), y(b);
  Connect(x, y);
  ASSERT_EQ(y.Receive(1), 0);
  fabric.CutOneWay(B(), A());
  ASSERT_EQ(x.Send(2, 8), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{2, IBV_WC_RETRY_EXC_ERR}}));
  EXPECT_EQ(y.Statuses(), (Statuses{{1, IBV_WC_SUCCESS}}));
}

TEST_F(FabricTest, ASilentLossOfAcknowledgementsDeliversOnce) {
  End x(a), y(b);
  Connect(x, y);
  ASSERT_EQ(y.Receive(1), 0);
  ASSERT_EQ(y.Receive(2), 0);
  fabric.CutOneWay(B(), A(), Cut::kSilent);
  ASSERT_EQ(x.Send(3, 8), 0);
  EXPECT_EQ(y.Statuses(), (Statuses{{1, IBV_WC_SUCCESS}}));
  EXPECT_TRUE(x.Poll().empty());
  fabric.MendPath(A(), B());
  EXPECT_EQ(x.Statuses(), (Statuses{{3, IBV_WC_SUCCESS}}));
  EXPECT_TRUE(y.Poll().empty());
}

TEST_F(FabricTest, APortGoesDownAndComesBackWithAnotherAddress) {
  End x(a), y(b);
  Connect(x, y);
  fabric.PortDown(A());
  ibv_async_event event{};
  ASSERT_EQ(a.GetAsyncEvent(x.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_PORT_ERR);
  ibv_port_attr port{};
  ASSERT_EQ(a.QueryPort(x.context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_DOWN);
  ASSERT_EQ(x.Write(1, 8, y), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{1, IBV_WC_LOC_QP_OP_ERR}}));
  ASSERT_EQ(y.Write(2, 8, x), 0);
  EXPECT_EQ(y.Statuses(), (Statuses{{2, IBV_WC_RETRY_EXC_ERR}}));
  fabric.PortUp(A(), "10.0.0.9");
  ASSERT_EQ(a.GetAsyncEvent(x.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_GID_CHANGE);
  ASSERT_EQ(a.GetAsyncEvent(x.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_PORT_ACTIVE);
  EXPECT_EQ(GidText(a.RailOf("fake0").gid), "::ffff:10.0.0.9");
}

TEST_F(FabricTest, HangsAndLostCompletions) {
  End x(a), y(b);
  Connect(x, y);
  a.Hang("fake0", x.qp->qp_num);
  ASSERT_EQ(x.Write(1, 8, y), 0);
  EXPECT_TRUE(x.Poll().empty());
  a.Hang("fake0", x.qp->qp_num, false);
  EXPECT_EQ(x.Statuses(), (Statuses{{1, IBV_WC_SUCCESS}}));
  a.LoseCompletions("fake0", 0);
  x.memory[0] = std::byte{3};
  ASSERT_EQ(x.Write(2, 8, y), 0);
  EXPECT_EQ(y.memory[0], std::byte{3});
  EXPECT_TRUE(x.Poll().empty());
}

TEST_F(FabricTest, RegistrationsAndPostsRunOut) {
  End x(a), y(b);
  Connect(x, y);
  std::byte piece[16];
  a.LimitRegistrations(1);
  ibv_mr* mr = a.RegMr(x.pd, piece, sizeof(piece), 0);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(a.RegMr(x.pd, piece, sizeof(piece), 0), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(a.DeregMr(mr), 0);
  a.FailPostSendAfter(1);
  EXPECT_EQ(x.Write(1, 8, y), 0);
  EXPECT_EQ(x.Write(2, 8, y), ENOMEM);
  a.FailReqNotify(true);
  EXPECT_EQ(a.ReqNotifyCq(x.cq, 0), EIO);
}

TEST_F(FabricTest, DmabufsAreWrittenByTheirIova) {
  End x(a), y(b);
  Connect(x, y);
  const int fd = memfd_create("gpu", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 8192), 0);
  constexpr uint64_t kIova = 0x7000'0000'0000;
  ibv_mr* mr = b.RegDmabufMr(y.pd, 4096, 4096, kIova, fd, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  ASSERT_NE(mr, nullptr);
  x.memory[0] = std::byte{5};
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  request.wr.rdma.remote_addr = kIova + 10;
  request.wr.rdma.rkey = mr->rkey;
  ASSERT_EQ(x.Post(request, 1, 1, true, 0), 0);
  EXPECT_EQ(x.Statuses(), (Statuses{{1, IBV_WC_SUCCESS}}));
  std::byte read{};
  ASSERT_EQ(pread(fd, &read, 1, 4106), 1);
  EXPECT_EQ(read, std::byte{5});
  EXPECT_EQ(b.DeregMr(mr), 0);
  b.FailDmabuf(true);
  EXPECT_EQ(b.RegDmabufMr(y.pd, 0, 4096, kIova, fd, 0), nullptr);
  close(fd);
}

TEST_F(SteppedTest, QueuePairsProgressInAnOrderOfTheSeed) {
  auto order = [](uint64_t seed) {
    Fabric fabric({.mode = Mode::kStepped, .seed = seed});
    Host& a = fabric.AddHost("a");
    Host& b = fabric.AddHost("b");
    a.AddDevice({.name = "fake0", .address = "10.0.0.1", .bytes_per_step = 8});
    b.AddDevice({.name = "fake0", .address = "10.0.0.2"});
    End x1(a), y1(b), x2(a), y2(b);
    for (auto [x, y] : {std::pair{&x1, &y1}, {&x2, &y2}}) {
      EXPECT_EQ(x->ToInit() | y->ToInit() | x->ToRtr(*y) | y->ToRtr(*x) | x->ToRts() | y->ToRts(), 0);
      for (auto& value : x->memory) value = std::byte{1};
      EXPECT_EQ(x->Write(1, 256, *y), 0);
    }
    std::vector<size_t> landed;
    while (fabric.Step() == 1) {
      landed.push_back(static_cast<size_t>(std::count(y1.memory.begin(), y1.memory.end(), std::byte{1})));
    }
    EXPECT_EQ(landed.size(), 64u);
    return landed;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST_F(FabricTest, NumbersComeAgainWhereThatIsAsked) {
  Fabric reusing({.reuse_qp_numbers = true});
  Host& host = reusing.AddHost("c");
  host.AddDevice({});
  uint32_t number = 0;
  {
    End x(host);
    number = x.qp->qp_num;
  }
  End x(host);
  EXPECT_EQ(x.qp->qp_num, number);
}

TEST_F(FabricTest, WhatIsInUseIsNotDestroyed) {
  End x(a);
  EXPECT_EQ(a.DeallocPd(x.pd), EBUSY);
  EXPECT_EQ(a.DestroyCq(x.cq), EBUSY);
  EXPECT_EQ(a.DestroyCompChannel(x.channel), EBUSY);
  EXPECT_EQ(a.CloseDevice(x.context), EBUSY);
  ibv_mr gone{};
  EXPECT_EQ(a.DeregMr(&gone), EINVAL);
  EXPECT_EQ(fabric.misuses().size(), 5u);
  EXPECT_EQ(fabric.live(), (Live{1, 1, 1, 1, 1, 1}));
}

}  // namespace
}  // namespace sluice::rdma::fake
