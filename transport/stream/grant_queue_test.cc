#include "transport/stream/grant_queue.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"

namespace sluice::transport {
namespace {

using Key = GrantQueue::Key;

TEST(GrantQueue, OrdersByPriorityThenByComing) {
  GrantQueue queue(100);
  queue.Add({1, 0, 0}, {.link = 1, .priority = 5, .bytes = 10});
  queue.Add({1, 1, 0}, {.link = 1, .priority = -5, .bytes = 10});
  queue.Add({1, 2, 0}, {.link = 2, .priority = -5, .bytes = 10});
  std::vector<Key> order;
  while (const auto next = queue.Next()) {
    order.push_back(*next);
    queue.Grant(*next);
  }
  EXPECT_EQ(order, (std::vector<Key>{{1, 1, 0}, {1, 2, 0}, {1, 0, 0}}));
}

TEST(GrantQueue, ALinkWithoutRoomWaitsAndOthersGoOn) {
  GrantQueue queue(10);
  for (uint32_t p = 0; p < 2; ++p) queue.Add({1, p, 0}, {.link = 1, .bytes = 10});
  queue.Grant(*queue.Next());
  EXPECT_EQ(queue.Next(), std::nullopt);
  queue.Add({1, 7, 1}, {.link = 2, .priority = 9, .bytes = 10});
  EXPECT_EQ(queue.Next(), (Key{1, 7, 1}));
  queue.Finish(1, 10);
  EXPECT_EQ(queue.Next(), (Key{1, 1, 0}));
}

TEST(GrantQueue, WhatOthersHaveBegunGoesFirst) {
  GrantQueue queue(10);
  queue.Add({1, 0, 0}, {.link = 1, .round = 3, .priority = 0, .bytes = 10});
  queue.Add({1, 1, 0}, {.link = 1, .round = 3, .priority = 1, .bytes = 10});
  queue.NoteRound(1, 1, 2);
  EXPECT_EQ(queue.Next(), (Key{1, 0, 0})) << "that was another round";
  queue.NoteRound(1, 1, 3);
  EXPECT_EQ(queue.Next(), (Key{1, 1, 0}));
  queue.Remove({1, 1, 0});
  queue.Add({1, 1, 0}, {.link = 1, .round = 4, .priority = 1, .bytes = 10});
  EXPECT_EQ(queue.Next(), (Key{1, 0, 0}));
  queue.NoteRound(1, 5, 0);
  queue.Add({1, 5, 0}, {.link = 1, .round = 0, .priority = 9, .bytes = 10});
  EXPECT_EQ(queue.Next(), (Key{1, 5, 0})) << "round 0 counts as any";
  queue.ForgetRounds(0, 5);
  queue.Remove({1, 5, 0});
  queue.Add({1, 5, 0}, {.link = 1, .round = 0, .priority = 9, .bytes = 10});
  EXPECT_EQ(queue.Next(), (Key{1, 0, 0}));
}

TEST(GrantQueue, NoRoundIsBegunWhileALinkOwesMuch) {
  GrantQueue queue(20);
  // Link 1 runs ahead by two parts of 10 that link 2, with no room, has announced as well.
  for (uint32_t p = 0; p < 2; ++p) queue.Add({1, 10 + p, 1}, {.link = 2, .priority = -1, .bytes = 10});
  for (uint32_t p = 0; p < 2; ++p) queue.Grant({1, 10 + p, 1});
  for (uint32_t p = 0; p < 3; ++p) queue.Add({1, p, 1}, {.link = 2, .bytes = 10});
  for (uint32_t p = 0; p < 3; ++p) queue.Add({1, p, 0}, {.link = 1, .bytes = 10});
  for (uint32_t p = 0; p < 2; ++p) {
    EXPECT_EQ(queue.Next(), (Key{1, p, 0}));
    queue.Grant({1, p, 0});
    queue.Finish(1, 10);
  }
  EXPECT_EQ(queue.Next(), std::nullopt);
  queue.Add({2, 0, 0}, {.link = 3, .bytes = 10});
  EXPECT_EQ(queue.Next(), (Key{2, 0, 0})) << "another job does not wait";
  queue.Remove({2, 0, 0});
  queue.Add({1, 7, 0}, {.link = 1, .bytes = 10, .joint = false});
  EXPECT_EQ(queue.Next(), (Key{1, 7, 0})) << "nor does what closes no round";
  queue.Remove({1, 7, 0});
  queue.Finish(2, 10);
  EXPECT_EQ(queue.Next(), (Key{1, 0, 1}));
  queue.Grant({1, 0, 1});
  EXPECT_EQ(queue.Next(), (Key{1, 2, 0})) << "it owes 10 only";
}

TEST(GrantQueue, NobodyWaitsForWhoHasAnnouncedNothing) {
  GrantQueue queue(20);
  for (uint32_t p = 0; p < 9; ++p) {
    queue.Add({1, p, 0}, {.link = 1, .bytes = 10});
    EXPECT_EQ(queue.Next(), (Key{1, p, 0}));
    queue.Grant({1, p, 0});
    queue.Finish(1, 10);
  }
}

TEST(GrantQueue, APlaceIsKept) {
  GrantQueue queue(10);
  queue.Add({1, 0, 0}, {.link = 1, .bytes = 10});
  queue.Add({1, 1, 0}, {.link = 1, .bytes = 10});
  const uint64_t place = queue.Remove({1, 0, 0});
  queue.Add({1, 0, 0}, {.link = 1, .bytes = 10}, place);
  EXPECT_EQ(queue.Next(), (Key{1, 0, 0}));
}

// Random calls against a list that is searched from end to end.
TEST(GrantQueue, AgreesWithTheObviousWay) {
  struct Slow {
    Key key;
    GrantQueue::Push push;
    bool begins;
    uint64_t place;
  };
  constexpr size_t kLinkBytes = 25;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    PhiloxRandom random(seed);
    GrantQueue queue(kLinkBytes);
    std::vector<Slow> waiting;
    std::vector<std::pair<LinkId, size_t>> granted;
    std::map<std::pair<uint32_t, uint32_t>, uint64_t> begun;
    std::map<LinkId, size_t> bytes;
    uint64_t place = 1;
    const auto lagging = [&](uint32_t job) {
      std::map<LinkId, size_t> owed;
      for (const Slow& s : waiting) {
        if (std::get<0>(s.key) == job && s.push.joint && !s.begins) owed[s.push.link] += s.push.bytes;
      }
      return std::ranges::any_of(owed, [](const auto& link) { return link.second >= kLinkBytes; });
    };
    const auto next = [&]() -> std::optional<Key> {
      const Slow* best = nullptr;
      const auto rank = [](const Slow& s) { return std::make_tuple(s.begins, s.push.priority, s.place); };
      for (const Slow& s : waiting) {
        if (bytes[s.push.link] >= kLinkBytes || (s.begins && lagging(std::get<0>(s.key)))) continue;
        if (best == nullptr || rank(s) < rank(*best)) best = &s;
      }
      return best == nullptr ? std::nullopt : std::optional<Key>(best->key);
    };
    const auto note = [&](uint32_t job, uint32_t partition, uint64_t round) {
      begun[{job, partition}] = round;
      for (Slow& s : waiting) {
        if (std::get<0>(s.key) == job && std::get<1>(s.key) == partition && s.push.round == round) s.begins = false;
      }
    };
    const auto find = [&](const Key& key) { return std::ranges::find(waiting, key, &Slow::key); };
    for (int step = 0; step < 300; ++step) {
      const Key key{1 + random.Below(2), random.Below(6), random.Below(3)};
      const auto [job, partition, rank] = key;
      switch (random.Below(6)) {
        case 0:
        case 1: {
          if (find(key) != waiting.end()) break;
          const LinkId link = 10 * job + rank;   // of one job and one rank
          const GrantQueue::Push push{link, random.Below(3), static_cast<int32_t>(random.Below(5)) - 2, random.Below(20),
                                      random.Below(5) > 0};
          const auto it = begun.find({job, partition});
          const bool known = it != begun.end() && it->second == push.round;
          waiting.push_back({key, push, push.joint && !known, place++});
          queue.Add(key, push);
          break;
        }
        case 2:
          if (const auto it = find(key); it != waiting.end()) {
            EXPECT_EQ(queue.Remove(key), it->place);
            waiting.erase(it);
          }
          break;
        case 3: {
          const std::optional<Key> first = random.Below(4) == 0 && find(key) != waiting.end() ? key : next();
          if (!first.has_value()) break;
          const auto it = find(*first);
          const Slow s = *it;
          waiting.erase(it);
          granted.emplace_back(s.push.link, s.push.bytes);
          bytes[s.push.link] += s.push.bytes;
          queue.Grant(*first);
          if (s.push.joint) note(std::get<0>(s.key), std::get<1>(s.key), s.push.round);
          break;
        }
        case 4:
          if (!granted.empty()) {
            const size_t at = random.Below(static_cast<uint32_t>(granted.size()));
            queue.Finish(granted[at].first, granted[at].second);
            bytes[granted[at].first] -= granted[at].second;
            granted.erase(granted.begin() + static_cast<std::ptrdiff_t>(at));
          }
          break;
        default: {
          const uint64_t round = random.Below(3);
          queue.NoteRound(job, partition, round);
          note(job, partition, round);
        }
      }
      ASSERT_EQ(queue.Next(), next()) << "seed " << seed << " step " << step;
      ASSERT_EQ(queue.size(), waiting.size());
    }
  }
}

}  // namespace
}  // namespace sluice::transport
