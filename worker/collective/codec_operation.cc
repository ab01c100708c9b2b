#include "worker/collective/codec_operation.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::collective {

using compression::Codec;
using compression::CodecId;

bool PicksElements(const Codec& codec) { return codec.id() == CodecId::kTopK || codec.id() == CodecId::kSparse; }

CodecOperation::CodecOperation(OperationEnv env, std::unique_ptr<Codec> codec, const Call& call)
    : env_(std::move(env)), codec_(std::move(codec)), call_(call), n_(env_.group.size), me_(env_.group.index) {
  next_residual_.assign(call_.residual.begin(), call_.residual.end());
  const uint64_t elements = std::max(call_.input.size(), call_.output.size());
  const auto turn = [&](uint32_t s) { return (me_ + s) % n_; };
  switch (call_.form) {
    case Form::kReduceScatter:
    case Form::kAllReduceParts:
      reduces_ = true;
      // Member c adds c + 1 first: it is sent first by who that is.
      for (uint32_t s = 1; s < n_; ++s) AddOut(turn(n_ - s), false, Part(turn(n_ - s)));
      for (uint32_t s = 1; s < n_; ++s) AddIn(turn(s), 0, Part(me_), true);
      sum_.resize(Part(me_).count);
      if (call_.form == Form::kAllReduceParts)
        for (uint32_t s = 1; s < n_; ++s) AddIn(turn(s), 1, Part(turn(s)), false);
      break;
    case Form::kAllReduceWhole:
      AddOut(0, true, {0, elements});
      for (uint32_t member = 0; member < n_; ++member) AddIn(member, 0, {0, elements}, true);
      break;
    case Form::kAllGather:
      AddOut(0, true, {0, call_.input.size()});
      for (uint32_t s = 0; s < n_; ++s) AddIn(turn(s), 0, Part(turn(s)), false);
      break;
    case Form::kAllToAll:
      for (uint32_t s = 1; s < n_; ++s) AddOut(turn(s), false, Part(turn(s)));
      for (uint32_t s = 1; s < n_; ++s) AddIn(turn(n_ - s), 0, Part(turn(n_ - s)), false);
      break;
    case Form::kSend: AddOut(call_.peer, false, {0, elements}); break;
    case Form::kReceive: AddIn(call_.peer, 0, {0, elements}, false); break;
  }
}

CodecOperation::Range CodecOperation::Part(uint32_t member) const {
  if (call_.form != Form::kAllReduceParts) {   // equal blocks
    const uint64_t count = std::max(call_.input.size(), call_.output.size()) / n_;
    return {member * count, count};
  }
  const uint64_t elements = call_.input.size(), begin = PartBegin(elements, n_, member);
  return {begin, PartBegin(elements, n_, member + 1) - begin};
}

void CodecOperation::AddOut(uint32_t member, bool to_all, Range range) {
  if (range.count > 0) outs_.push_back({member, to_all, range});
}

void CodecOperation::AddIn(uint32_t member, uint32_t number, Range range, bool ordered) {
  if (range.count == 0) return;
  In& in = ins_.emplace_back();
  in.member = member;
  in.number = number;
  in.range = range;
  in.ordered = ordered;
  in.capacity = codec_->MaxEncodedBytes(range.count);
  ++unused_;
}

std::vector<uint32_t> CodecOperation::peers() const {
  std::set<uint32_t> ranks;
  const bool message = call_.form == Form::kSend || call_.form == Form::kReceive;
  for (uint32_t member = 0; member < n_; ++member)
    if (member != me_ && (!message || member == call_.peer)) ranks.insert(env_.group.rank(member));
  return {ranks.begin(), ranks.end()};
}

absl::Status CodecOperation::Start() {
  if (call_.form == Form::kAllToAll) {   // what stays here is not encoded
    const Range own = Part(me_);
    std::copy_n(call_.input.begin() + static_cast<ptrdiff_t>(own.begin), own.count,
                call_.output.begin() + static_cast<ptrdiff_t>(own.begin));
  }
  SLUICE_RETURN_IF_ERROR(EncodeNext());
  SLUICE_RETURN_IF_ERROR(Issue());
  return UseInOrder();
}

absl::StatusOr<std::shared_ptr<CodecOperation::Sent>> CodecOperation::Encode(std::span<const float> values,
                                                                             std::span<const float> residual, uint64_t at,
                                                                             uint32_t stage) {
  if (const size_t i = compression::FirstNonfinite(values); i < values.size())
    return absl::InvalidArgumentError(absl::StrCat("value ", at + i, " at rank ", env_.group.rank(me_),
                                                   stage == 0 ? "" : ", a sum,", " is not finite: no codec can carry it"));
  auto sent = std::make_shared<Sent>();
  const size_t most = codec_->MaxEncodedBytes(values.size());
  SLUICE_ASSIGN_OR_RETURN(sent->memory, env_.pool->Take(most));
  compression::EncodeInput input;
  input.gradient = values;
  input.residual = residual;
  if (!next_residual_.empty()) input.residual_out = std::span<float>(next_residual_).subspan(at, values.size());
  input.random = call_.random;
  input.random.tensor ^= stage << 31;
  input.random.first_element = at;
  SLUICE_ASSIGN_OR_RETURN(sent->bytes, codec_->Encode(input, {sent->memory.get(), most}));
  ++encoded_;
  return sent;
}

void CodecOperation::SendTo(uint32_t member, uint32_t number, const std::shared_ptr<Sent>& sent, uint64_t elements) {
  ++sent->left;
  ++unacknowledged_;
  const uint32_t handle = static_cast<uint32_t>(by_handle_.size());
  by_handle_.push_back(sent);
  env_.courier->Send(env_.op, handle, env_.group.rank(member), number, {sent->memory.get(), sent->bytes},
                     static_cast<uint16_t>(codec_->id()), static_cast<uint32_t>(elements), env_.priority);
}

bool CodecOperation::has_work() const { return next_out_ < outs_.size() && encoded_ < kEncodedAhead; }

absl::Status CodecOperation::Work() {
  SLUICE_RETURN_IF_ERROR(EncodeNext());
  return UseInOrder();
}

absl::Status CodecOperation::EncodeNext() {
  if (!has_work()) return absl::OkStatus();
  const Out& out = outs_[next_out_++];
  const std::span<const float> residual =
      call_.residual.empty() ? std::span<const float>() : call_.residual.subspan(out.range.begin, out.range.count);
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<Sent> sent,
                          Encode(call_.input.subspan(out.range.begin, out.range.count), residual, out.range.begin, 0));
  if (!out.to_all) {
    SendTo(out.member, 0, sent, out.range.count);
    return absl::OkStatus();
  }
  for (uint32_t s = 1; s < n_; ++s) SendTo((me_ + n_ - s) % n_, 0, sent, out.range.count);
  if (n_ == 1) --encoded_;
  if (call_.form == Form::kAllReduceWhole) std::fill(call_.output.begin(), call_.output.end(), 0.0f);   // the input has been read
  for (In& in : ins_) {   // this member decodes its own bytes as the others do
    if (in.member != me_) continue;
    in.memory = sent->memory;
    in.size = sent->bytes;
    in.came = true;
    if (in.ordered) continue;
    SLUICE_RETURN_IF_ERROR(Decode({in.memory.get(), in.size}, call_.output.subspan(in.range.begin, in.range.count), false));
    in.used = true;
    in.memory.reset();
    --unused_;
  }
  return absl::OkStatus();
}

absl::Status CodecOperation::Issue() {
  for (; next_expect_ < ins_.size(); ++next_expect_) {
    In& in = ins_[next_expect_];
    if (in.member == me_) continue;
    if (expected_bytes_ > 0 && expected_bytes_ + in.capacity > kWindow) break;
    SLUICE_ASSIGN_OR_RETURN(in.memory, env_.pool->Take(in.capacity));
    expected_bytes_ += in.capacity;
    env_.courier->Expect(env_.op, static_cast<uint32_t>(next_expect_), env_.group.rank(in.member), in.number,
                         {in.memory.get(), in.capacity}, /*exact=*/false);
  }
  return absl::OkStatus();
}

absl::Status CodecOperation::Decode(ConstBytes bytes, std::span<float> to, bool add) const {
  SLUICE_RETURN_IF_ERROR(codec_->Validate(bytes, to.size()));
  return add ? codec_->DecodeAdd(bytes, to) : codec_->Decode(bytes, to);
}

absl::Status CodecOperation::OnArrived(uint32_t handle, uint16_t codec, ConstBytes bytes) {
  In& in = ins_[handle];
  if (codec != static_cast<uint16_t>(codec_->id()))
    return absl::InvalidArgumentError(absl::StrCat("values in codec ", codec, " where ", codec_->name(), " is expected"));
  in.came = true;
  in.size = bytes.size();
  if (in.ordered) {
    if (bytes.data() != in.memory.get()) std::memcpy(in.memory.get(), bytes.data(), bytes.size());
    return UseInOrder();
  }
  SLUICE_RETURN_IF_ERROR(Decode(bytes, call_.output.subspan(in.range.begin, in.range.count), false));
  in.used = true;
  in.memory.reset();
  expected_bytes_ -= in.capacity;
  --unused_;
  return Issue();
}

absl::Status CodecOperation::UseInOrder() {
  for (; next_ordered_ < ins_.size() && ins_[next_ordered_].ordered; ++next_ordered_) {
    In& in = ins_[next_ordered_];
    // The output of a whole all-reduce is the input until that is encoded.
    if (!in.came || (call_.form == Form::kAllReduceWhole && next_out_ == 0)) return Issue();
    const std::span<float> to = reduces_ ? std::span<float>(sum_) : call_.output.subspan(in.range.begin, in.range.count);
    SLUICE_RETURN_IF_ERROR(Decode({in.memory.get(), in.size}, to, !reduces_ || next_ordered_ > 0));
    in.used = true;
    in.memory.reset();
    if (in.member != me_) expected_bytes_ -= in.capacity;
    --unused_;
  }
  if (reduces_ && !std::exchange(reduced_, true)) SLUICE_RETURN_IF_ERROR(Reduced());
  return Issue();
}

absl::Status CodecOperation::Reduced() {
  const Range own = Part(me_);
  for (uint64_t i = 0; i < own.count; ++i) {
    const float mine = call_.input[own.begin + i];
    const float value = call_.residual.empty() ? mine : mine + call_.residual[own.begin + i];
    sum_[i] = n_ == 1 ? value : sum_[i] + value;
  }
  if (own.count == 0) return absl::OkStatus();
  const std::span<float> to = call_.form == Form::kReduceScatter ? call_.output : call_.output.subspan(own.begin, own.count);
  if (call_.form == Form::kReduceScatter) {
    std::copy(sum_.begin(), sum_.end(), to.begin());
    if (!next_residual_.empty()) std::fill_n(next_residual_.begin() + static_cast<ptrdiff_t>(own.begin), own.count, 0.0f);
    return absl::OkStatus();
  }
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<Sent> sent, Encode(sum_, {}, own.begin, 1));
  for (uint32_t s = 1; s < n_; ++s) SendTo((me_ + n_ - s) % n_, 1, sent, own.count);
  if (n_ == 1) --encoded_;
  return Decode({sent->memory.get(), sent->bytes}, to, false);
}

absl::Status CodecOperation::OnAcknowledged(uint32_t handle) {
  --unacknowledged_;
  if (--by_handle_[handle]->left == 0) --encoded_;
  by_handle_[handle].reset();
  return absl::OkStatus();
}

bool CodecOperation::done() const {
  return next_out_ == outs_.size() && unused_ == 0 && unacknowledged_ == 0 && (!reduces_ || reduced_);
}

void CodecOperation::Commit() { std::copy(next_residual_.begin(), next_residual_.end(), call_.residual.begin()); }

}  // namespace sluice::collective
