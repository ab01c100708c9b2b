// Decoders of topk and of the sparse format. Any bytes are safe: a header or a size that makes no sense decodes to
// nothing, all other rubbish to some values at some indices below n.
//
//   1. Zero (not to add): the output.
//   2. Open: checks header and sizes. A group's gaps have as many bytes as its width says, so one thread of a block walks
//      from width to width, through pieces of the encoding that all threads bring to shared memory.
//   3. Sums: over each group of gaps, or of the bits of each 1024 of a bitmap. Scan: what lies before each.
//   4. Expand: the index of each entry. Drawn ones need neither 3 nor a walk.
//   5. Values: decoded as an array of their own, by the decoder that the header names, and stored or added.
// Moves the output once to zero it; else only the encoding, and about 50 bytes an entry.
#include "compression/cuda/drawn.h"
#include "compression/cuda/sparse_state.h"
#include "compression/cuda/sparse_values.h"

namespace sluice::compression::cuda {
namespace {

constexpr uint32_t kMaxWidth = 32, kPiece = 4096;

// All that later steps know of the header: the encoding is not asked again.
struct OpenState {
  uint32_t count;     // of entries; 0 where the encoding makes no sense
  uint32_t form;      // of the indices
  uint32_t values;    // id of the values' codec
  int32_t exponent;   // topk's
};

struct DecodeWorkspace {
  SLUICE_DEVICE explicit DecodeWorkspace(const SparseDecodeTask& task)
      : state(static_cast<OpenState*>(task.workspace)), indices(reinterpret_cast<uint32_t*>(state + 1)),
        widths(indices + task.most), offsets(widths + Groups(task.most)), sums(offsets + Groups(task.most)) {}
  SLUICE_DEVICE static uint64_t Groups(uint64_t entries) { return (entries + kGroup - 1) / kGroup; }

  OpenState* state;
  uint32_t* indices;           // of the entries
  uint32_t *widths, *offsets;  // of each group of gaps: bits, and its first byte behind the values
  uint32_t* sums;              // of each group or tile: how far it goes, or its bits; then, of those before it
};

SLUICE_DEVICE uint64_t IndicesAt(const OpenState& state) {
  return kSparseHeader + ValueBytes(static_cast<uint8_t>(state.values), state.count);
}

// The header, with a count of 0 if it or the sizes make no sense.
SLUICE_DEVICE OpenState ReadHeader(const SparseDecodeTask& task, bool topk) {
  OpenState state = {0, kGaps, 1, 0};
  if (task.bytes < kSparseHeader) return state;
  const uint32_t count = device::LoadBytes<uint32_t>(task.in, false);
  const uint32_t low = device::LoadBytes<uint16_t>(task.in + 4, false);
  const uint32_t high = device::LoadBytes<uint16_t>(task.in + 6, false);
  if (topk) {
    state.exponent = static_cast<int16_t>(low);
    state.form = high;
    if (state.exponent < kMinTopKExponent || state.exponent > kMaxTopKExponent || high > kBitmap) return state;
  } else {
    state.form = low & 255;
    state.values = low >> 8;
    if (state.form > kDrawn || high != 0) return state;
  }
  if (count > task.n || count > task.most) return state;
  const uint64_t room = task.bytes - kSparseHeader, values = ValueBytes(static_cast<uint8_t>(state.values), count);
  if (values > room) return state;   // an id without values has more than any room
  const uint64_t indices = room - values;
  if (state.form == kBitmap && indices != BitmapBytes(task.n)) return state;
  if (state.form == kDrawn && indices != kSparseKey) return state;
  if (indices > UINT32_MAX) return state;
  state.count = count;
  return state;
}

// Finds each group's width and bytes. What it returns counts in thread 0 alone: whether the gaps fill `size` bytes.
SLUICE_DEVICE bool Walk(const uint8_t* in, uint32_t size, uint32_t count, const DecodeWorkspace& work) {
  SLUICE_SHARED(uint8_t, kPiece, piece);
  uint64_t at = 0;   // of the next width
  uint32_t left = count, group = 0;
  bool good = true;
  for (uint64_t begin = 0; begin < size; begin += kPiece) {
    const uint32_t length = size - begin < kPiece ? static_cast<uint32_t>(size - begin) : kPiece;
    device::Barrier();   // the last piece has been read
    for (uint32_t i = device::ThreadIndex(); i < length; i += kThreads) piece.Store(i, in[begin + i]);
    device::Barrier();
    if (device::ThreadIndex() != 0) continue;
    while (left > 0 && good && at < begin + length) {
      const uint32_t width = piece.Load(static_cast<uint32_t>(at - begin)), members = Smaller(left, kGroup);
      good = width <= kMaxWidth && GroupBytes(members, width) <= size - at;
      work.widths[group] = width;
      work.offsets[group] = static_cast<uint32_t>(at) + 1;
      at += GroupBytes(members, width);
      left -= members;
      ++group;
    }
  }
  return good && left == 0 && at == size;
}

// One block a partition.
SLUICE_KERNEL(kThreads) OpenKernel(const SparseDecodeTask* tasks, bool topk) {
  const SparseDecodeTask task = tasks[device::BlockY()];
  const DecodeWorkspace work(task);
  SLUICE_SHARED(uint32_t, 3, opened);
  if (device::ThreadIndex() == 0) {   // alone: all threads must agree on what they walk through
    const OpenState state = ReadHeader(task, topk);
    *work.state = state;
    opened.Store(0, state.count);
    opened.Store(1, state.form);
    opened.Store(2, state.values);
  }
  device::Barrier();
  const OpenState state = {opened.Load(0), opened.Load(1), opened.Load(2), 0};
  if (state.count == 0 || state.form != kGaps) return;
  const uint64_t at = IndicesAt(state);
  const bool good = Walk(task.in + at, static_cast<uint32_t>(task.bytes - at), state.count, work);
  if (device::ThreadIndex() == 0 && !good) work.state->count = 0;
}

// `width` bits from bit `at` on; at most 5 bytes.
SLUICE_DEVICE uint32_t BitsAt(const uint8_t* in, uint32_t at, uint32_t width) {
  if (width == 0) return 0;
  uint64_t word = 0;
  for (uint32_t i = at / 8; i <= (at + width - 1) / 8; ++i) word |= uint64_t{in[i]} << (8 * (i - at / 8));
  return static_cast<uint32_t>((word >> (at % 8)) & ((uint64_t{1} << width) - 1));
}

// What lane l has of a group: how far entries 2 l and 2 l + 1 go beyond the one before, 0 where there is none. In 32
// bits: what overflows is no index below n, or is one that another entry may have.
struct Steps {
  SLUICE_DEVICE Steps(const uint8_t* packed, uint32_t width, uint32_t members) {
    const uint32_t first = 2 * device::Lane();
    if (first < members) even = BitsAt(packed, first * width, width) + 1;
    if (first + 1 < members) odd = BitsAt(packed, (first + 1) * width, width) + 1;
  }
  uint32_t even = 0, odd = 0;
};

// Calls f(tile, the lane's first element, its 32 bits) for each 1024 bits of this warp, all lanes together.
template <typename F>
SLUICE_DEVICE void ForBits(const uint8_t* bitmap, uint64_t n, F f) {
  const uint64_t bytes = BitmapBytes(n), stride = uint64_t{device::GridX()} * kWarps;
  for (uint64_t tile = uint64_t{device::BlockX()} * kWarps + device::WarpIndex(); tile * 1024 < n; tile += stride) {
    const uint64_t first = tile * 128 + device::Lane() * 4;
    uint32_t bits = 0;
    for (uint32_t b = 0; b < 4; ++b)
      if (first + b < bytes) bits |= uint32_t{bitmap[first + b]} << (8 * b);
    f(static_cast<uint32_t>(tile), static_cast<uint32_t>(first * 8), bits);
  }
}

SLUICE_KERNEL(kThreads) SumsKernel(const SparseDecodeTask* tasks) {
  const SparseDecodeTask task = tasks[device::BlockY()];
  const DecodeWorkspace work(task);
  const OpenState state = *work.state;
  if (state.count == 0 || state.form == kDrawn) return;
  const uint8_t* in = task.in + IndicesAt(state);
  if (state.form == kGaps) {
    ForGroups(state.count, [&](uint32_t group, uint32_t, uint32_t members) {
      const Steps steps(in + work.offsets[group], work.widths[group], members);
      const uint32_t sum = device::WarpAdd(steps.even + steps.odd);
      if (device::Lane() == 0) work.sums[group] = sum;
    });
    return;
  }
  ForBits(in, task.n, [&](uint32_t tile, uint32_t, uint32_t bits) {
    const uint32_t sum = device::WarpAdd(device::CountBits(bits));
    if (device::Lane() == 0) work.sums[tile] = sum;
  });
}

// One block a partition.
SLUICE_KERNEL(kThreads) ScanSumsKernel(const SparseDecodeTask* tasks) {
  const SparseDecodeTask task = tasks[device::BlockY()];
  const DecodeWorkspace work(task);
  const uint32_t count = work.state->count, form = work.state->form;
  if (count == 0 || form == kDrawn) return;
  const uint64_t parts = form == kGaps ? DecodeWorkspace::Groups(count) : (task.n + 1023) / 1024;
  const uint32_t total = ScanInPlace(work.sums, static_cast<uint32_t>(parts));   // all have read the count
  if (device::ThreadIndex() == 0 && form == kBitmap && total != count) work.state->count = 0;
}

SLUICE_KERNEL(kThreads) ExpandKernel(const SparseDecodeTask* tasks) {
  const SparseDecodeTask task = tasks[device::BlockY()];
  const DecodeWorkspace work(task);
  const OpenState state = *work.state;
  if (state.count == 0) return;
  const uint8_t* in = task.in + IndicesAt(state);
  if (state.form == kDrawn) return DrawIndices(device::LoadBytes<uint64_t>(in, false), state.count, task.n, work.indices);
  if (state.form == kGaps) {
    ForGroups(state.count, [&](uint32_t group, uint32_t first, uint32_t members) {
      const Steps steps(in + work.offsets[group], work.widths[group], members);
      const uint32_t sum = steps.even + steps.odd;
      const uint32_t even = work.sums[group] + device::WarpInclusiveSum(sum) - sum + steps.even;
      const uint32_t at = first + 2 * device::Lane();
      if (2 * device::Lane() < members) work.indices[at] = even - 1;
      if (2 * device::Lane() + 1 < members) work.indices[at + 1] = even + steps.odd - 1;
    });
    return;
  }
  ForBits(in, task.n, [&](uint32_t tile, uint32_t first, uint32_t bits) {
    const uint32_t members = device::CountBits(bits);
    uint32_t entry = work.sums[tile] + device::WarpInclusiveSum(members) - members;
    for (uint32_t i = 0; i < 32; ++i)
      if ((bits >> i & 1) != 0 && entry < state.count) work.indices[entry++] = first + i;
  });
}

template <bool kAdd, typename Decoder>
SLUICE_DEVICE void DecodeEntries(const Decoder& decoder, uint64_t count, const uint32_t* indices,
                                 const SparseDecodeTask& task) {
  ForRows(count, [&](uint64_t row, uint64_t at, uint32_t members) {
    const Quad values = decoder.Decode(row, at, members);
    for (uint32_t j = 0; j < 4; ++j) {
      if (j >= members) continue;
      const uint32_t index = indices[at + j];
      if (index >= task.n) continue;
      task.out[index] = kAdd ? device::Add(task.out[index], values.v[j]) : values.v[j];
    }
  });
}

template <bool kAdd>
SLUICE_KERNEL(kThreads) DecodeValuesKernel(const SparseDecodeTask* tasks, bool topk) {
  const SparseDecodeTask task = tasks[device::BlockY()];
  const DecodeWorkspace work(task);
  const OpenState state = *work.state;
  DecodeTask values = task;
  values.in += kSparseHeader;
  values.n = state.count;
  const auto decode = [&](const auto& decoder) {
    DecodeEntries<kAdd>(decoder, state.count, work.indices, task);
  };
  if (topk) return decode(TopKDecoder(values, state.exponent));
  switch (state.values) {
    case 0: return decode(NoneFormat::Decoder(values));
    case 1: return decode(HalfFormat<Fp16Rules>::Decoder(values));
    case 2: return decode(HalfFormat<Bf16Rules>::Decoder(values));
    case 3: return decode(Int8Format::Decoder(values));
    case 5: return decode(Int4Format::Decoder(values));
    case 6: return decode(OneBitFormat::Decoder(values));
    case 8: return decode(Mxfp8Format::Decoder(values));
    default: return;
  }
}

SLUICE_KERNEL(kThreads) ZeroKernel(const SparseDecodeTask* tasks) {
  const SparseDecodeTask task = tasks[device::BlockY()];
  const bool aligned = device::IsAligned<Quad>(task.out);
  ForRows(task.n, [&](uint64_t, uint64_t at, uint32_t count) {
    device::StoreQuad(task.out + at, {{0.0f, 0.0f, 0.0f, 0.0f}}, count, aligned);
  });
}

Error DecodeInto(bool topk, bool add, const Batch<SparseDecodeTask>& batch, Stream stream) {
  if (batch.count == 0 || batch.largest == 0) return 0;
  if (TooLarge(batch)) return kInvalidValue;
  const uint32_t entries = EntryBlocks(batch), count = batch.count;
  Error error = add ? 0 : LaunchRows("zero", batch, stream, ZeroKernel, batch.tasks);
  const auto launch = [&](const char* name, uint32_t grid_x, auto kernel, auto... more) {
    if (error == 0) error = device::Launch(stream, {name, grid_x, count, kThreads}, kernel, batch.tasks, more...);
  };
  launch("open", 1, OpenKernel, topk);
  launch("sums", entries, SumsKernel);
  launch("scan sums", 1, ScanSumsKernel);
  launch("expand", entries, ExpandKernel);
  launch("decode values", entries, add ? DecodeValuesKernel<true> : DecodeValuesKernel<false>, topk);
  return error;
}

}  // namespace

uint64_t SparseDecodeWorkspaceBytes(uint64_t n, uint64_t most) {
  const uint64_t groups = (most + kGroup - 1) / kGroup, tiles = (n + 1023) / 1024;
  return sizeof(OpenState) + 4 * (most + 2 * groups + std::max(groups, tiles));
}

Error DecodeTopK(Batch<SparseDecodeTask> batch, Stream stream) { return DecodeInto(true, false, batch, stream); }
Error DecodeTopKAdd(Batch<SparseDecodeTask> batch, Stream stream) { return DecodeInto(true, true, batch, stream); }
Error DecodeSparse(Batch<SparseDecodeTask> batch, Stream stream) { return DecodeInto(false, false, batch, stream); }
Error DecodeSparseAdd(Batch<SparseDecodeTask> batch, Stream stream) { return DecodeInto(false, true, batch, stream); }

}  // namespace sluice::compression::cuda
