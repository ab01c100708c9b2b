// Bytes on the network of one byte of fp32, by the codecs that a job's tensors travel in.
#pragma once

#include <map>
#include <string>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"

namespace sluice::planning {

// Means over the model's bytes, by codecs' bounds for a partition.
class WireRatios {
 public:
  explicit WireRatios(const proto::JobConfig& config) : config_(config) {}   // lives longer

  // auto_codec: in which the tensor travels if the job's policy leaves that to measurements.
  void Add(const proto::TensorSpec& spec, double bytes, const std::string& auto_codec = "none");

  double push() const { return bytes_ > 0 ? push_ / bytes_ : 1; }
  double reply() const { return bytes_ > 0 ? reply_ / bytes_ : 1; }
  // The first codec of which no ratio is known, so that fp32 was counted; "": there was none.
  const std::string& unknown() const { return unknown_; }

 private:
  double Of(const std::string& codec);   // asked once each

  const proto::JobConfig& config_;
  std::map<std::string, double> known_;
  double push_ = 0, reply_ = 0, bytes_ = 0;
  std::string unknown_;
};

}  // namespace sluice::planning
