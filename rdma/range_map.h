// Values by the range of memory that they belong to. Ranges may overlap (a tensor and the slab that it lies in).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "base/bytes.h"

namespace sluice::rdma {

template <typename Value>
class RangeMap {
 public:
  struct Range {
    uintptr_t begin = 0;
    size_t bytes = 0;
    Value value{};
  };

  // id: never used before.
  void Insert(uint64_t id, uintptr_t begin, size_t bytes, Value value) {
    by_begin_.emplace(std::make_pair(begin, id), Range{begin, bytes, std::move(value)});
    begin_of_.emplace(id, begin);
    longest_ = std::max(longest_, bytes);
  }

  void Erase(uint64_t id) {
    auto found = begin_of_.find(id);
    if (found == begin_of_.end()) return;
    by_begin_.erase({found->second, id});
    begin_of_.erase(found);
    if (by_begin_.empty()) longest_ = 0;
  }

  const Range* Get(uint64_t id) const {
    auto found = begin_of_.find(id);
    return found == begin_of_.end() ? nullptr : &by_begin_.at({found->second, id});
  }

  // The one with the highest start of those that hold all the bytes and that accept(id, range) takes.
  template <typename Accept>
  const Range* Find(ConstBytes bytes, Accept accept) const {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(bytes.data());
    for (auto it = by_begin_.upper_bound({begin, UINT64_MAX}); it != by_begin_.begin();) {
      --it;
      const Range& range = it->second;
      const size_t offset = begin - range.begin;
      if (offset > longest_) break;  // nothing that starts further down reaches this far
      if (offset <= range.bytes && bytes.size() <= range.bytes - offset && accept(it->first.second, range))
        return &range;
    }
    return nullptr;
  }

  template <typename Do>
  void ForEach(Do act) const {
    for (const auto& [key, range] : by_begin_) act(key.second, range);
  }

  size_t size() const { return by_begin_.size(); }

 private:
  std::map<std::pair<uintptr_t, uint64_t>, Range> by_begin_;  // (begin, id)
  std::map<uint64_t, uintptr_t> begin_of_;
  size_t longest_ = 0;  // of all since the map was last empty
};

}  // namespace sluice::rdma
