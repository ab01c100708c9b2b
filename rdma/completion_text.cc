#include "rdma/completion_text.h"

namespace sluice::rdma {

const char* CompletionName(unsigned status) {
  switch (status) {
    case IBV_WC_SUCCESS: return "success";
    case IBV_WC_LOC_LEN_ERR: return "local length error";
    case IBV_WC_LOC_QP_OP_ERR: return "local operation error";
    case IBV_WC_LOC_PROT_ERR: return "local protection error";
    case IBV_WC_WR_FLUSH_ERR: return "flushed";
    case IBV_WC_BAD_RESP_ERR: return "bad response";
    case IBV_WC_LOC_ACCESS_ERR: return "local access error";
    case IBV_WC_REM_INV_REQ_ERR: return "remote: invalid request";
    case IBV_WC_REM_ACCESS_ERR: return "remote access error";
    case IBV_WC_REM_OP_ERR: return "remote operation error";
    case IBV_WC_RETRY_EXC_ERR: return "retries exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR: return "receiver-not-ready retries exceeded";
    case IBV_WC_REM_ABORT_ERR: return "remote aborted";
    case IBV_WC_FATAL_ERR: return "fatal error";
    case IBV_WC_RESP_TIMEOUT_ERR: return "response timeout";
    case IBV_WC_GENERAL_ERR: return "general error";
    default: return "unknown error";
  }
}

const char* CompletionMend(unsigned status) {
  switch (status) {
    case IBV_WC_SUCCESS: return "";
    case IBV_WC_WR_FLUSH_ERR:
      return "the queue pair broke before this request: the peer closed it, the port went down, or the peer met an "
             "error; see the peer's log and `ibv_devinfo`";
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer did not acknowledge: its process or host is gone, the port or path is down, or the fabric loses "
             "packets; check `rdma link`, the peer's log, and local_ack_timeout_err and out_of_sequence among the "
             "port's counters";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer is alive but posted no receives in time: look for a stuck process there";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer has revoked the memory or never allowed it; expected right after a slot was closed";
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer's receive was too small or its queue pair is set up otherwise: compare versions and options";
    case IBV_WC_LOC_PROT_ERR:
      return "memory of a request was no longer registered here: a buffer was freed while it was being sent";
    case IBV_WC_LOC_LEN_ERR: return "a packet of the peer was longer than the receive: compare versions and options";
    default: return "see the kernel's log (dmesg) for the device, and the peer's log";
  }
}

}  // namespace sluice::rdma
