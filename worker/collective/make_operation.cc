#include "worker/collective/make_operation.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "compression/draws.h"
#include "transport/wire.h"
#include "worker/collective/codec_operation.h"

namespace sluice::collective {
namespace {

bool Plain(const Request& request) { return request.codec.empty() || request.codec == "none"; }

uint64_t PieceElements(uint64_t elements) {
  return std::max<uint64_t>(kPieceBytes / sizeof(float), (elements + kMaxPieces - 1) / kMaxPieces);
}

// The elements of the whole call; sender and receiver of a message have the same.
uint64_t ElementsOf(const Request& request) { return std::max(request.input.size(), request.output.size()); }

absl::StatusOr<Algorithm> AlgorithmOf(const Request& request, const Network& network) {
  const double bytes = static_cast<double>(ElementsOf(request)) * sizeof(float);
  const auto refuse = [&](absl::string_view which) {
    return absl::InvalidArgumentError(
        absl::StrCat(KindName(request.kind), " by ", AlgorithmName(request.algorithm), "; it goes by ", which));
  };
  switch (request.kind) {
    case Kind::kAllReduce:
      if (request.algorithm == Algorithm::kChain || request.algorithm == Algorithm::kTree)
        return refuse("ring, halving_doubling, double_tree and hierarchical");
      return request.algorithm == Algorithm::kAuto ? ChooseAllReduce(network, bytes, kPieceBytes) : request.algorithm;
    case Kind::kReduce:
    case Kind::kBroadcast:
      if (request.algorithm != Algorithm::kAuto && request.algorithm != Algorithm::kChain && request.algorithm != Algorithm::kTree)
        return refuse("chain and tree");
      return request.algorithm == Algorithm::kAuto ? ChooseRooted(network, bytes, kPieceBytes) : request.algorithm;
    case Kind::kBarrier: return Algorithm::kDoubleTree;
    default:
      if (request.algorithm != Algorithm::kAuto && request.algorithm != Algorithm::kRing) return refuse("one algorithm");
      return Algorithm::kRing;
  }
}

uint32_t SignatureOf(const Request& request, Algorithm algorithm, uint64_t elements) {
  const Kind kind = request.kind == Kind::kReceive ? Kind::kSend : request.kind;
  const std::string codec = Plain(request) ? "none" : request.codec;
  std::vector<std::byte> bytes(24 + codec.size() + 4);
  StoreLe(bytes.data(), static_cast<uint32_t>(kind));
  StoreLe(bytes.data() + 4, static_cast<uint32_t>(algorithm));
  StoreLe(bytes.data() + 8, request.root);
  StoreLe(bytes.data() + 12, elements);
  StoreLe(bytes.data() + 20, static_cast<uint32_t>(codec.size()));
  std::memcpy(bytes.data() + 24, codec.data(), codec.size());
  StoreLe(bytes.data() + 24 + codec.size(), static_cast<uint32_t>(request.reduction));
  return static_cast<uint32_t>(transport::HashBytes(bytes));
}

void CopyValues(std::span<const float> from, std::span<float> to) {
  if (from.data() != to.data()) std::memmove(to.data(), from.data(), from.size_bytes());
}

absl::StatusOr<std::span<float>> WorkBuffer(transport::BufferPool* pool, uint64_t elements, std::shared_ptr<std::byte>* memory) {
  SLUICE_ASSIGN_OR_RETURN(*memory, pool->Take(elements * sizeof(float)));
  return std::span<float>(reinterpret_cast<float*>(memory->get()), elements);
}

Steps MessageSteps(const Request& request) {
  Steps steps;
  const bool send = request.kind == Kind::kSend;
  const uint64_t elements = ElementsOf(request), piece = PieceElements(elements);
  for (uint64_t at = 0; at < elements; at += piece)
    steps.push_back({send ? Step::Kind::kSend : Step::Kind::kCopy, send, request.peer, at, std::min(piece, elements - at)});
  return steps;
}

}  // namespace

absl::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce: return "all-reduce";
    case Kind::kReduce: return "reduce";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kAllGather: return "all-gather";
    case Kind::kReduceScatter: return "reduce-scatter";
    case Kind::kAllToAll: return "all-to-all";
    case Kind::kSend: return "send";
    case Kind::kReceive: return "receive";
    case Kind::kBarrier: return "barrier";
  }
  return "?";
}

std::string DescribeRequest(const Request& request, const RankGroup& group) {
  std::string text(KindName(request.kind));
  if (request.kind != Kind::kBarrier) absl::StrAppend(&text, " of ", ElementsOf(request), " values");
  if (request.kind == Kind::kReduce || request.kind == Kind::kBroadcast) absl::StrAppend(&text, ", root ", request.root, ",");
  if (request.kind == Kind::kSend) absl::StrAppend(&text, " to member ", request.peer);
  if (request.kind == Kind::kReceive) absl::StrAppend(&text, " from member ", request.peer);
  if (!Plain(request)) absl::StrAppend(&text, " in ", request.codec.substr(0, 64));
  return absl::StrCat(text, " in group ", group.name);
}

absl::Status CheckCodec(const Request& request, const RankGroup&) {
  if (Plain(request)) {
    if (!request.residual.empty()) return absl::InvalidArgumentError("a residual without a codec");
    return absl::OkStatus();
  }
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(KindName(request.kind), " in codec ", request.codec.substr(0, 64), ": ", why));
  };
  if (request.kind == Kind::kReduce || request.kind == Kind::kBroadcast || request.kind == Kind::kBarrier)
    return refuse("it goes without a codec");
  if (request.algorithm != Algorithm::kAuto) return refuse("with a codec there is one algorithm: leave it at auto");
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<compression::Codec> codec, compression::MakeCodec(request.codec));
  // What other codecs keep from round to round makes them quicker alone; this one is no good without.
  if (codec->id() == compression::CodecId::kLowRank)
    return refuse("it needs its state of the round before, which collectives do not keep: take another codec");
  const bool feedback = request.kind == Kind::kAllReduce || request.kind == Kind::kReduceScatter || request.kind == Kind::kAllGather;
  if (!request.residual.empty()) {
    if (!feedback) return refuse("there is no error feedback: drop the residual");
    if (!codec->uses_residual()) return refuse("error feedback does not serve this codec: drop the residual");
    if (request.residual.size() != request.input.size())
      return refuse(absl::StrCat("a residual of ", request.residual.size(), " values for ", request.input.size()));
  } else if (codec->biased()) {
    return refuse(feedback ? "what it leaves out would be lost: give a residual" : "what it leaves out would be lost: take another codec");
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<std::unique_ptr<Operation>> MakeCodecOperation(const Request& request, OperationEnv env, const CallIdentity& identity) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<compression::Codec> codec, compression::MakeCodec(request.codec));
  CodecOperation::Call call;
  using Form = CodecOperation::Form;
  switch (request.kind) {
    case Kind::kReduceScatter: call.form = Form::kReduceScatter; break;
    case Kind::kAllGather: call.form = Form::kAllGather; break;
    case Kind::kAllToAll: call.form = Form::kAllToAll; break;
    case Kind::kSend: call.form = Form::kSend; break;
    case Kind::kReceive: call.form = Form::kReceive; break;
    default: call.form = PicksElements(*codec) ? Form::kAllReduceWhole : Form::kAllReduceParts;
  }
  call.input = request.input;
  call.output = request.output;
  call.residual = request.residual;
  call.peer = request.peer;
  call.random.seed = compression::RandomSeed(identity.job, identity.rank);
  call.random.round = identity.name.sequence;
  call.random.tensor = request.tensor.value_or((uint32_t{1} << 30) + identity.name.group);
  return std::make_unique<CodecOperation>(std::move(env), std::move(codec), call);
}

}  // namespace

absl::StatusOr<MadeOperation> MakeOperation(const Request& request, OperationEnv env, const Network& network,
                                            const CallIdentity& identity) {
  MadeOperation made;
  SLUICE_ASSIGN_OR_RETURN(const Algorithm algorithm, AlgorithmOf(request, network));
  const uint64_t elements = ElementsOf(request), piece = PieceElements(elements);
  const uint32_t n = env.group.size;
  const Layout& layout = network.layout;
  made.signature = SignatureOf(request, algorithm, elements);
  made.values = request.output;
  if (!Plain(request)) {
    SLUICE_ASSIGN_OR_RETURN(made.operation, MakeCodecOperation(request, std::move(env), identity));
    return made;
  }
  Steps steps;
  switch (request.kind) {
    case Kind::kAllReduce:
      CopyValues(request.input, request.output);
      steps = AllReduceSteps(algorithm, layout, elements, piece);
      break;
    case Kind::kReduce:
      if (env.group.index != request.root) {
        SLUICE_ASSIGN_OR_RETURN(made.values, WorkBuffer(env.pool, elements, &made.work));
      }
      CopyValues(request.input, made.values);
      steps = ReduceSteps(algorithm, layout, request.root, elements, piece);
      break;
    case Kind::kBroadcast: steps = BroadcastSteps(algorithm, layout, request.root, elements, piece); break;
    case Kind::kAllGather: {
      const size_t count = request.input.size();
      CopyValues(request.input, request.output.subspan(env.group.index * count, count));
      steps = AllGatherSteps(layout, count, piece);
      break;
    }
    case Kind::kReduceScatter: {
      SLUICE_ASSIGN_OR_RETURN(made.values, WorkBuffer(env.pool, elements, &made.work));
      CopyValues(request.input, made.values);
      steps = ReduceScatterSteps(layout, elements / n, piece);
      break;
    }
    case Kind::kAllToAll: {
      const size_t count = elements / n;
      CopyValues(request.input.subspan(env.group.index * count, count), request.output.subspan(env.group.index * count, count));
      steps = AllToAllSteps(layout, count, piece);
      break;
    }
    case Kind::kSend:
    case Kind::kReceive: steps = MessageSteps(request); break;
    case Kind::kBarrier: {
      SLUICE_ASSIGN_OR_RETURN(made.values, WorkBuffer(env.pool, 1, &made.work));
      made.values[0] = 0;
      steps = AllReduceSteps(algorithm, layout, 1, 1);
      break;
    }
  }
  if (!steps.empty())
    made.operation = std::make_unique<ScheduleOperation>(std::move(env), std::move(steps), request.input, made.values);
  return made;
}

void FinishValues(const Request& request, const RankGroup& group, std::span<float> values) {
  if (request.kind == Kind::kReduceScatter && values.data() != request.output.data()) {
    const size_t count = request.output.size();
    CopyValues(values.subspan(group.index * count, count), request.output);
  }
  const bool has_sum = request.kind == Kind::kAllReduce || request.kind == Kind::kReduceScatter ||
                       (request.kind == Kind::kReduce && group.index == request.root);
  if (!has_sum || request.reduction != Reduction::kMean) return;
  const float by = static_cast<float>(group.size);
  for (float& value : request.output) value /= by;
}

}  // namespace sluice::collective
