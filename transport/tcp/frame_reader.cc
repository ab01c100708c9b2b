#include "transport/tcp/frame_reader.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::transport {

absl::StatusOr<FrameReader::Progress> FrameReader::Read(int fd, MutableBytes staging, size_t budget) {
  Progress progress;
  while (progress.bytes < budget) {
    ssize_t got;
    size_t asked;
    size_t direct = std::min(remaining_, kChunk);
    if (direct > 0 && target_ == nullptr) {  // to nowhere
      direct = asked = std::min(direct, staging.size());
      got = recv(fd, staging.data(), asked, MSG_DONTWAIT);
    } else if (direct > 0) {
      iovec parts[2] = {{target_, direct}, {staging.data(), kHeaderBytes}};
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = direct == remaining_ ? 2 : 1;
      asked = direct + (message.msg_iovlen == 2 ? kHeaderBytes : 0);
      got = recvmsg(fd, &message, MSG_DONTWAIT);
    } else {
      asked = staging.size();
      got = recv(fd, staging.data(), asked, MSG_DONTWAIT);
    }
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return progress;
      return absl::UnavailableError(strerror(errno));
    }
    if (got == 0) {
      progress.end = true;
      return progress;
    }
    const size_t bytes = static_cast<size_t>(got);
    progress.bytes += bytes;
    const size_t landed = std::min(bytes, direct);
    bool go_on = true;
    if (landed > 0) {
      Landed(landed);
      if (remaining_ == 0) {
        SLUICE_ASSIGN_OR_RETURN(go_on, EndFrame());
      }
    }
    if (go_on && bytes > landed) {
      SLUICE_ASSIGN_OR_RETURN(go_on, Parse({staging.data(), bytes - landed}));
    }
    if (!go_on) return progress;
    if (bytes < asked) return progress;  // the socket was emptied; a later arrival raises a new event
  }
  progress.more = true;
  return progress;
}

absl::StatusOr<bool> FrameReader::Parse(ConstBytes bytes) {
  while (!bytes.empty()) {
    if (remaining_ > 0) {
      const size_t n = std::min(remaining_, bytes.size());
      if (target_ != nullptr) memcpy(target_, bytes.data(), n);
      bytes = bytes.subspan(n);
      Landed(n);
      if (remaining_ > 0) break;
      SLUICE_ASSIGN_OR_RETURN(const bool go_on, EndFrame());
      if (!go_on) return false;
      continue;
    }
    const size_t n = std::min(kHeaderBytes - partial_bytes_, bytes.size());
    memcpy(partial_ + partial_bytes_, bytes.data(), n);
    partial_bytes_ += n;
    bytes = bytes.subspan(n);
    if (partial_bytes_ < kHeaderBytes) break;
    partial_bytes_ = 0;
    SLUICE_ASSIGN_OR_RETURN(header_, DecodeHeader(partial_));
    SLUICE_ASSIGN_OR_RETURN(const bool go_on, BeginPayload());
    if (!go_on) return false;
  }
  return true;
}

absl::StatusOr<bool> FrameReader::BeginPayload() {
  SLUICE_ASSIGN_OR_RETURN(target_, sink_->OnHeader(header_));
  remaining_ = header_.payload_bytes;
  if (remaining_ == 0) return EndFrame();
  if (header_.has(kFlagHash)) hasher_.Reset();
  return true;
}

void FrameReader::Landed(size_t bytes) {
  if (target_ != nullptr) {
    if (header_.has(kFlagHash)) hasher_.Update({target_, bytes});
    target_ += bytes;
  }
  remaining_ -= bytes;
}

absl::StatusOr<bool> FrameReader::EndFrame() {
  ++frames_;
  payload_total_ += header_.payload_bytes;
  if (header_.payload_bytes > 0) {
    if (target_ == nullptr) {
      sink_->OnDropped(header_);
      return true;
    }
    if (header_.has(kFlagHash) && hasher_.Digest() != header_.payload_hash)
      return absl::DataLossError(absl::StrCat("the payload fails its hash: ", DebugString(header_)));
  }
  return sink_->OnPayload(header_);
}

std::string FrameReader::Position() const {
  if (remaining_ > 0) {
    return absl::StrCat("in the middle of a frame (", header_.payload_bytes - remaining_, " of ", header_.payload_bytes,
                        " payload bytes of ", DebugString(header_), ")");
  }
  if (partial_bytes_ > 0) return absl::StrCat("in the middle of a frame header (", partial_bytes_, " bytes)");
  return "between frames";
}

}  // namespace sluice::transport
