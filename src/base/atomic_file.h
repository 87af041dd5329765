#pragma once

// Output files that appear whole or not at all.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace imago {

/// Writes beside the target under a name of its own; `commit` syncs and renames it over the target. Without a commit
/// nothing remains. An existing target keeps its permissions, and a link stays a link to the new content.
/// One thread at a time; not movable, since its temporary name is registered for removal by a signal handler.
class AtomicFile {
 public:
  /// Throws IoError if nothing can be written beside `path`, or if `path` is something else than a regular file.
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// As the caller gave it.
  const std::string& path() const noexcept { return path_; }
  /// Bytes written so far.
  std::uint64_t size() const noexcept { return size_; }

  /// Buffered. Throws IoError (disk full, quota, …).
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  /// Makes the file the target: it is on disk when this returns. Throws IoError, and the old target stays.
  /// REQUIRES: not committed before.
  void commit();

 private:
  void flush();
  void write_now(std::span<const std::byte> bytes);
  void discard() noexcept;

  std::string path_;
  std::string target_;     // path_ with links followed
  std::string directory_;  // absolute, of the target
  std::string temporary_;  // empty once it is committed or gone
  int slot_ = -1;          // in the register of temporary names; -1: none was free
  UniqueFd file_;
  std::vector<std::byte> buffer_;
  std::uint64_t size_ = 0;
  std::uint64_t on_file_ = 0;      // of it, what the system has
  std::uint64_t handed_over_ = 0;  // of that, what the disk was told to write
};

/// Public, see imago/system.h.
void remove_unfinished_files() noexcept;

}  // namespace imago
