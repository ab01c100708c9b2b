// The scheduler's state in one SQLite file: write-ahead log, synced at each write, held exclusively so that no two
// schedulers can share it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/core.h"

namespace sluice::scheduler {

class SqliteStore final : public Store {
 public:
  // Creates the file if there is none (its directory must exist). Errors name the file:
  //   DATA_LOSS            not a database, or damaged
  //   FAILED_PRECONDITION  the file of another program or of a newer release; no permission
  //   UNAVAILABLE          another scheduler holds it
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& path);
  ~SqliteStore() override;

  // RESOURCE_EXHAUSTED: the disk is full; UNAVAILABLE: other errors of the file system. Nothing was written then.
  absl::Status Write(const std::vector<std::pair<std::string, std::string>>& changes) override;
  absl::StatusOr<std::map<std::string, std::string>> ReadAll() override;

 private:
  struct Database;
  explicit SqliteStore(std::unique_ptr<Database> database);
  const std::unique_ptr<Database> database_;
};

}  // namespace sluice::scheduler
