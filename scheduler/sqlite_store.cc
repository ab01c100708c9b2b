#include "scheduler/sqlite_store.h"

#include <sqlite3.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/writable.h"

namespace sluice::scheduler {
namespace {

constexpr int kApplicationId = 0x534C4345;  // "SLCE" in the file's header
constexpr int kSchema = 1;
constexpr int kBusyTimeoutMs = 3000;        // a predecessor that is just ending still holds the file

absl::Status ToStatus(sqlite3* db, int code, const std::string& path, absl::string_view what) {
  const int system = db != nullptr ? sqlite3_system_errno(db) : 0;
  const std::string text =
      absl::StrCat("state file ", path, ": ", what, ": ", db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code),
                   system != 0 ? absl::StrCat(" (", std::strerror(system), ")") : "");
  if (system == ENOSPC || system == EDQUOT || (code & 0xFF) == SQLITE_FULL)
    return absl::ResourceExhaustedError(absl::StrCat(text, "; free space on its disk"));
  switch (code & 0xFF) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(absl::StrCat(
          text, "; it is damaged or not a state file: move it away to start without it (running jobs are lost)"));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(
          absl::StrCat(text, "; another scheduler holds it: give this one its own node.state_file"));
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return absl::FailedPreconditionError(
          absl::StrCat(text, "; this user must be able to write it and its directory"));
    case SQLITE_CANTOPEN:
      return absl::FailedPreconditionError(
          absl::StrCat(text, "; does its directory exist, and may this user write there?"));
    default:
      return absl::UnavailableError(text);
  }
}

}  // namespace

struct SqliteStore::Database {
  std::string path;
  sqlite3* db = nullptr;
  sqlite3_stmt* put = nullptr;
  sqlite3_stmt* erase = nullptr;

  ~Database() {
    sqlite3_finalize(put);
    sqlite3_finalize(erase);
    sqlite3_close(db);
  }

  absl::Status Run(const char* sql, absl::string_view what) {
    const int code = sqlite3_exec(db, sql, nullptr, nullptr, nullptr);
    return code == SQLITE_OK ? absl::OkStatus() : ToStatus(db, code, path, what);
  }

  absl::StatusOr<int> Number(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    int code = sqlite3_prepare_v2(db, sql, -1, &statement, nullptr);
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    const int value = code == SQLITE_ROW ? sqlite3_column_int(statement, 0) : 0;
    sqlite3_finalize(statement);
    if (code != SQLITE_ROW) return ToStatus(db, code, path, "cannot be read");
    return value;
  }

  absl::Status Prepare(const char* sql, sqlite3_stmt** statement) {
    const int code = sqlite3_prepare_v2(db, sql, -1, statement, nullptr);
    return code == SQLITE_OK ? absl::OkStatus() : ToStatus(db, code, path, "has an unexpected layout");
  }

  absl::Status Change(const std::string& key, const std::string& value) {
    sqlite3_stmt* statement = value.empty() ? erase : put;
    sqlite3_bind_text(statement, 1, key.data(), static_cast<int>(key.size()), SQLITE_STATIC);
    if (!value.empty()) sqlite3_bind_blob64(statement, 2, value.data(), value.size(), SQLITE_STATIC);
    const int code = sqlite3_step(statement);
    const absl::Status status = code == SQLITE_DONE ? absl::OkStatus() : ToStatus(db, code, path, "cannot be written");
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return status;
  }

  // Finds out what the file is, and makes it ours if it is new.
  absl::Status SetUp() {
    SLUICE_RETURN_IF_ERROR(Run("PRAGMA locking_mode=EXCLUSIVE", "cannot be opened"));
    SLUICE_ASSIGN_OR_RETURN(const int application, Number("PRAGMA application_id"));
    SLUICE_ASSIGN_OR_RETURN(const int schema, Number("PRAGMA user_version"));
    SLUICE_ASSIGN_OR_RETURN(const int tables, Number("SELECT count(*) FROM sqlite_master"));
    const bool fresh = application == 0 && schema == 0 && tables == 0;
    if (!fresh && application != kApplicationId)
      return absl::FailedPreconditionError(absl::StrCat("state file ", path, ": is the database of another program"));
    if (schema > kSchema)
      return absl::FailedPreconditionError(absl::StrCat(
          "state file ", path, ": was written by a newer release (schema ", schema, ", this one knows ", kSchema, ")"));
    SLUICE_RETURN_IF_ERROR(Run("PRAGMA journal_mode=WAL", "cannot be written"));
    SLUICE_RETURN_IF_ERROR(Run("PRAGMA synchronous=FULL", "cannot be written"));
    SLUICE_RETURN_IF_ERROR(Run("BEGIN IMMEDIATE", "cannot be locked"));
    const std::string layout = absl::StrCat(
        "PRAGMA application_id=", kApplicationId, "; PRAGMA user_version=", kSchema,
        "; CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value BLOB NOT NULL)", " WITHOUT ROWID; COMMIT");
    SLUICE_RETURN_IF_ERROR(Run(layout.c_str(), "cannot be written"));
    SLUICE_RETURN_IF_ERROR(Prepare("INSERT OR REPLACE INTO state (key, value) VALUES (?1, ?2)", &put));
    return Prepare("DELETE FROM state WHERE key = ?1", &erase);
  }
};

SqliteStore::SqliteStore(std::unique_ptr<Database> database) : database_(std::move(database)) {}
SqliteStore::~SqliteStore() = default;

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& path) {
  // SQLite's own errno is that of the last thing it has tried, often of another file.
  for (const HowWritten how : {HowWritten::kInPlace, HowWritten::kReplaced})   // the file, and its journal beside it
    SLUICE_RETURN_IF_ERROR(CheckWritable("--node.state_file", path, how));
  auto database = std::make_unique<Database>();
  database->path = path;
  const int code = sqlite3_open_v2(path.c_str(), &database->db,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code != SQLITE_OK) return ToStatus(database->db, code, path, "cannot be opened");
  sqlite3_busy_timeout(database->db, kBusyTimeoutMs);
  SLUICE_RETURN_IF_ERROR(database->SetUp());
  return std::unique_ptr<SqliteStore>(new SqliteStore(std::move(database)));
}

absl::Status SqliteStore::Write(const std::vector<std::pair<std::string, std::string>>& changes) {
  SLUICE_RETURN_IF_ERROR(database_->Run("BEGIN IMMEDIATE", "cannot be written"));
  absl::Status status;
  for (const auto& [key, value] : changes) {
    status = database_->Change(key, value);
    if (!status.ok()) break;
  }
  if (status.ok()) status = database_->Run("COMMIT", "cannot be written");
  // Some errors have ended the transaction already.
  if (!status.ok() && sqlite3_get_autocommit(database_->db) == 0)
    (void)database_->Run("ROLLBACK", "cannot be rolled back");
  return status;
}

absl::StatusOr<std::map<std::string, std::string>> SqliteStore::ReadAll() {
  sqlite3_stmt* statement = nullptr;
  SLUICE_RETURN_IF_ERROR(database_->Prepare("SELECT key, value FROM state", &statement));
  std::map<std::string, std::string> records;
  int code;
  while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
    const auto* key = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
    const auto* value = static_cast<const char*>(sqlite3_column_blob(statement, 1));
    if (key == nullptr || value == nullptr) continue;
    records.emplace(std::string(key, sqlite3_column_bytes(statement, 0)),
                    std::string(value, sqlite3_column_bytes(statement, 1)));
  }
  const absl::Status status =
      code == SQLITE_DONE ? absl::OkStatus() : ToStatus(database_->db, code, database_->path, "cannot be read");
  sqlite3_finalize(statement);
  if (!status.ok()) return status;
  return records;
}

}  // namespace sluice::scheduler
