#include "transport/tcp/frame_writer.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <utility>

#include "transport/tcp/payload_hash.h"

namespace sluice::transport {

void FrameWriter::Add(FrameHeader header, ConstBytes payload, uint64_t cookie) {
  Frame& frame = queue_.emplace_back();
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  frame.header = header;
  frame.cookie = cookie;
  if (cookie == 0) {
    frame.copy.assign(payload.begin(), payload.end());
    frame.payload = frame.copy;
  } else {
    frame.payload = payload;
  }
  queued_bytes_ += kHeaderBytes + payload.size();
}

void FrameWriter::AddUrgent(FrameHeader header, ConstBytes payload) {
  Frame& frame = *queue_.emplace(between_frames() ? queue_.begin() : queue_.begin() + 1);
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  frame.header = header;
  frame.copy.assign(payload.begin(), payload.end());
  frame.payload = frame.copy;
  queued_bytes_ += kHeaderBytes + payload.size();
}

void FrameWriter::Encode(Frame& frame) {
  if (hash_ && !frame.payload.empty()) {
    frame.header.flags |= kFlagHash;
    frame.header.payload_hash = HashPayload(frame.payload);
  } else {
    frame.header.flags &= static_cast<uint16_t>(~kFlagHash);
    frame.header.payload_hash = 0;
  }
  EncodeHeader(frame.header, frame.encoded);
  frame.ready = true;
}

absl::StatusOr<size_t> FrameWriter::Write(int fd, size_t budget, std::vector<uint64_t>* done) {
  size_t written = 0;
  blocked_ = false;
  while (!queue_.empty() && written < budget) {
    // Gather whole frames until the call is large enough; only the last may be cut by kChunk.
    iovec parts[kMaxParts];
    int count = 0;
    size_t asked = 0;
    for (auto frame = queue_.begin(); frame != queue_.end() && count + 2 <= kMaxParts && asked < kChunk; ++frame) {
      if (!frame->ready) Encode(*frame);
      if (frame->sent < kHeaderBytes) {
        parts[count++] = {frame->encoded + frame->sent, kHeaderBytes - frame->sent};
        asked += kHeaderBytes - frame->sent;
      }
      const size_t offset = frame->sent > kHeaderBytes ? frame->sent - kHeaderBytes : 0;
      const size_t bytes = std::min(frame->payload.size() - offset, kChunk);
      if (bytes == 0) continue;
      parts[count++] = {const_cast<std::byte*>(frame->payload.data()) + offset, bytes};
      asked += bytes;
      if (offset + bytes < frame->payload.size()) break;
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t put = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
        blocked_ = true;
        break;
      }
      return absl::UnavailableError(strerror(errno));
    }
    written += static_cast<size_t>(put);
    queued_bytes_ -= static_cast<size_t>(put);
    for (size_t left = static_cast<size_t>(put); left > 0;) {
      Frame& frame = queue_.front();
      const size_t n = std::min(left, kHeaderBytes + frame.payload.size() - frame.sent);
      frame.sent += n;
      left -= n;
      if (frame.sent < kHeaderBytes + frame.payload.size()) break;
      ++frames_;
      payload_total_ += frame.payload.size();
      if (frame.cookie != 0) done->push_back(frame.cookie);
      queue_.pop_front();
    }
    if (static_cast<size_t>(put) < asked) {
      blocked_ = true;
      break;
    }
  }
  return written;
}

void FrameWriter::TakeBack(uint64_t cookie) {
  for (Frame& frame : queue_) {
    if (frame.cookie != cookie) continue;
    frame.copy.assign(frame.payload.begin(), frame.payload.end());
    frame.payload = frame.copy;
    frame.cookie = 0;
    return;
  }
}

void FrameWriter::TakeCookies(std::vector<uint64_t>* done) {
  for (const Frame& frame : queue_)
    if (frame.cookie != 0) done->push_back(frame.cookie);
  queue_.clear();
  queued_bytes_ = 0;
}

}  // namespace sluice::transport
