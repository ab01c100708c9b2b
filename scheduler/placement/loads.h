// Bytes that a step puts on each arc, and the largest time that one of them is busy, kept while bytes come and go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::placement {

class Loads {
 public:
  // Adds an arc. `cut`: bytes on it leave a rack or a zone.
  void AddArc(double bytes_per_second, bool cut);
  void Clear();                          // no bytes anywhere

  void Add(uint32_t arc, double bytes) {   // negative: they go again
    bytes_[arc] += bytes;
    if (cut_[arc]) cut_bytes_ += bytes;
    all_bytes_ += bytes;
    Update(arc);
  }

  size_t arcs() const { return bytes_.size(); }
  double bytes(uint32_t arc) const { return bytes_[arc]; }
  double busy(uint32_t arc) const { return bytes_[arc] * seconds_per_byte_[arc]; }
  double MaxBusy() const { return leaves_ == 0 ? 0 : most_[1]; }
  uint32_t Busiest() const;              // of several the first; kNone: there is no arc
  double cut_bytes() const { return cut_bytes_; }
  double all_bytes() const { return all_bytes_; }   // each byte as often as it crosses an arc: hops

  // Many Adds in a row are cheaper between these: the largest is found at the end.
  void BeginBulk() { bulk_ = true; }
  void EndBulk();

 private:
  void Update(uint32_t arc) {
    if (bulk_) return;
    size_t i = leaves_ + arc;
    most_[i] = busy(arc);
    for (i /= 2; i > 0; i /= 2) {
      const double most = most_[2 * i] > most_[2 * i + 1] ? most_[2 * i] : most_[2 * i + 1];
      if (most_[i] == most) break;
      most_[i] = most;
    }
  }

  std::vector<double> bytes_, seconds_per_byte_;
  std::vector<char> cut_;
  double cut_bytes_ = 0, all_bytes_ = 0;
  size_t leaves_ = 0;             // a power of two; most_[leaves_ + arc] is the arc's, most_[i] that of its two children
  std::vector<double> most_;
  bool bulk_ = false;
};

}  // namespace sluice::placement
