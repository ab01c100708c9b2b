// qsgd and terngrad: encode, decode, decode and add.
#include "compression/cuda/qsgd.h"

#include "compression/cuda/rows.h"

namespace sluice::compression::cuda {
namespace {

SLUICE_KERNEL(kThreads) EncodeQsgdKernel(const EncodeTask* tasks, uint32_t levels, float max_scale) {
  const EncodeTask task = tasks[device::BlockY()];
  EncodeRows(QsgdEncoder(task, levels, max_scale), task.n, DenseSource<false>(task));
}

}  // namespace

Error EncodeQsgd(uint32_t levels, Batch<EncodeTask> batch, Stream stream) {
  if (levels == 0 || levels > kMostQsgdLevels) return kInvalidValue;
  batch.largest = std::max<uint64_t>(batch.largest, 1);   // nothing has a header, too
  return LaunchRows("encode qsgd", batch, stream, EncodeQsgdKernel, batch.tasks, levels,
                    LevelsOf(static_cast<int>(levels)).max_scale);
}

Error DecodeQsgd(const Batch<DecodeTask>& batch, bool add, Stream stream) {
  return LaunchDecode<QsgdFormat>(batch, add, stream);
}

}  // namespace sluice::compression::cuda
