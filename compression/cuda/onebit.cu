// onebit: encode with error feedback, decode, decode and add.
#include "compression/cuda/onebit.h"

#include "compression/cuda/rows.h"

namespace sluice::compression::cuda {
namespace {

SLUICE_KERNEL(kThreads) EncodeOneBitKernel(const EncodeTask* tasks) {
  const EncodeTask task = tasks[device::BlockY()];
  EncodeOneBitBlocks(task.out, task.n, DenseSource<false>(task));
}

}  // namespace

Error EncodeOneBit(const Batch<EncodeTask>& batch, Stream stream) {
  return LaunchRows("encode onebit", batch, stream, EncodeOneBitKernel, batch.tasks);
}

Error DecodeOneBit(const Batch<DecodeTask>& batch, bool add, Stream stream) {
  return LaunchDecode<OneBitFormat>(batch, add, stream);
}

}  // namespace sluice::compression::cuda
