// Collectives of encoded values: every member sends what it has encoded straight to who needs it. Private to this folder.
//
// Reduce-scatter, and the first half of an all-reduce in a codec that sends all elements: of the n parts, member i takes part i.
// It encodes its own values of part j != i, residual added in, for member j; it does not encode its own part. It adds
//   ((x[i+1] + x[i+2]) + …) + x[i], indices modulo n,
// where x[j] is what it decodes from member j, and its own x[i] is exact: value plus residual.
//
// The second half: member i encodes the sum of part i and sends it to all. All decode the same bytes, i too, so results are equal
// to the bit. The residual of the own part takes this encoding's error, so with p the sums of values and residuals
//   sum over members of new residuals + result = p        in exact arithmetic: nothing is lost, only late.
// The caller's residual changes when the operation is done; a failed one leaves it as it was.
//
// All-reduce in a codec that picks elements (sparse ones): each member encodes all of its values once, residual added in, and
// sends them to all; each adds what it decodes in the order of the members, its own encoding too.
//
// All-gather: each encodes its block (residual added in), all decode it, the member itself too. All-to-all, send: encoded for
// the one who takes it, without residual.
//
// Memory beside the caller's: own encodings until they are acknowledged, and encodings that are expected, at most kWindow
// or one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compression/codec.h"
#include "worker/collective/operation.h"

namespace sluice::collective {

// A codec whose encodings grow with what was picked, not with the elements.
bool PicksElements(const compression::Codec& codec);

class CodecOperation final : public Operation {
 public:
  static constexpr size_t kWindow = 8 << 20;
  static constexpr size_t kEncodedAhead = 2;   // encodings made and not acknowledged

  enum class Form { kAllReduceParts, kAllReduceWhole, kReduceScatter, kAllGather, kAllToAll, kSend, kReceive };
  struct Call {
    Form form = Form::kAllReduceParts;
    std::span<const float> input;
    std::span<float> output;
    std::span<float> residual;       // all of the input's elements, or empty
    uint32_t peer = 0;               // send, receive
    compression::RandomKey random;   // first_element is the operation's
  };
  CodecOperation(OperationEnv env, std::unique_ptr<compression::Codec> codec, const Call& call);

  absl::Status Start() override;
  absl::Status OnArrived(uint32_t handle, uint16_t codec, ConstBytes bytes) override;
  absl::Status OnAcknowledged(uint32_t handle) override;
  absl::Status Work() override;
  bool has_work() const override;
  bool done() const override;
  std::vector<uint32_t> peers() const override;
  void Commit() override;

 private:
  struct Range {
    uint64_t begin = 0, count = 0;
  };
  // To be encoded and sent, in order.
  struct Out {
    uint32_t member = 0;
    bool to_all = false;
    Range range;                         // of the input, and of the residual
  };
  // Encoded bytes that are on their way to one or all.
  struct Sent {
    std::shared_ptr<std::byte> memory;
    size_t bytes = 0;
    uint32_t left = 0;                   // acknowledgements
  };
  // To be expected in order.
  struct In {
    uint32_t member = 0;                 // maybe this one
    uint32_t number = 0;
    Range range;                         // of the output
    bool ordered = false;                // added in the order of ins_; else it replaces, when it comes
    std::shared_ptr<std::byte> memory;
    size_t capacity = 0, size = 0;
    bool came = false, used = false;
  };

  void AddOut(uint32_t member, bool to_all, Range range);
  void AddIn(uint32_t member, uint32_t number, Range range, bool ordered);
  Range Part(uint32_t member) const;
  // Encodes the values; what is lost goes to next_residual_ at `at` (if a residual is kept).
  absl::StatusOr<std::shared_ptr<Sent>> Encode(std::span<const float> values, std::span<const float> residual, uint64_t at,
                                               uint32_t stage);
  void SendTo(uint32_t member, uint32_t number, const std::shared_ptr<Sent>& sent, uint64_t elements);
  absl::Status EncodeNext();
  absl::Status Issue();
  absl::Status UseInOrder();
  absl::Status Decode(ConstBytes bytes, std::span<float> to, bool add) const;
  absl::Status Reduced();                // what the others have for the own part is added up

  const OperationEnv env_;
  const std::unique_ptr<compression::Codec> codec_;
  const Call call_;
  const uint32_t n_, me_;
  std::vector<Out> outs_;
  size_t next_out_ = 0;
  std::vector<In> ins_;
  size_t next_expect_ = 0, next_ordered_ = 0, unused_ = 0;
  size_t expected_bytes_ = 0;
  std::vector<std::shared_ptr<Sent>> by_handle_;
  size_t unacknowledged_ = 0;            // messages
  size_t encoded_ = 0;                   // encodings that are not acknowledged by all
  std::vector<float> sum_;               // of the own part
  bool reduces_ = false, reduced_ = false;
  std::vector<float> next_residual_;     // becomes the caller's when all is done
};

}  // namespace sluice::collective
