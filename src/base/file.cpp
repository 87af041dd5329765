#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <mutex>
#include <system_error>

#include "imago/error.h"

namespace imago {

namespace {

/// File systems whose pages come over a network or from another process (numbers of statfs(2)).
bool is_remote(int fd) {
  constexpr unsigned kRemote[] = {
      0x6969,      // NFS
      0x517B,      // SMB
      0xFF534D42,  // CIFS
      0xFE534D42,  // SMB 2
      0x65735546,  // FUSE: sshfs and the like
      0x00C36400,  // Ceph
      0x01021997,  // 9P
      0x5346414F,  // AFS
      0x0BD00BD0,  // Lustre
  };
  struct statfs system {};
  if (::fstatfs(fd, &system) != 0) return false;
  return std::ranges::find(kRemote, static_cast<unsigned>(system.f_type)) != std::end(kRemote);
}

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

std::vector<std::byte> read_whole(int fd, std::size_t size, const std::string& path) {
  std::vector<std::byte> bytes(size);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(fd, bytes.data() + done, size - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_system_error(path, "cannot read", errno);
    if (got == 0) throw IoError(path, fmt::format("became shorter while it was read: {} of {} bytes", done, size));
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

/// The mappings that are alive. Callers hold spans and cannot tell mapped bytes from copied ones; advice that frees a
/// mapped page would wipe a copied one.
class Mappings {
 public:
  void add(std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    ranges_.push_back(bytes);
  }
  void remove(std::span<const std::byte> bytes) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase_if(ranges_, [&](const auto& range) { return range.data() == bytes.data(); });
  }
  bool advise(std::span<const std::byte> bytes, int advice) noexcept {
    const std::lock_guard lock(mutex_);  // held meanwhile: the mapping must not go
    const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
    const bool mapped = std::ranges::any_of(ranges_, [&](const auto& range) {
      const auto start = reinterpret_cast<std::uintptr_t>(range.data());
      return begin >= start && begin + bytes.size() <= start + range.size();
    });
    if (!mapped || bytes.empty()) return false;
    const std::uintptr_t page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const std::uintptr_t aligned = begin / page * page;
    ::madvise(reinterpret_cast<void*>(aligned), begin - aligned + bytes.size(), advice);
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<std::span<const std::byte>> ranges_;
};

Mappings& mappings() {
  static Mappings instance;
  return instance;
}

}  // namespace

void prefetch_pages(std::span<const std::byte> bytes) noexcept { mappings().advise(bytes, MADV_WILLNEED); }

bool release_pages(std::span<const std::byte> bytes) noexcept { return mappings().advise(bytes, MADV_DONTNEED); }

void throw_system_error(std::string_view path, std::string_view attempt, int error) {
  throw IoError(path, fmt::format("{}: {}", attempt, std::generic_category().message(error)));
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

bool UniqueFd::close() noexcept {
  const int fd = std::exchange(fd_, -1);
  return fd < 0 || ::close(fd) == 0;
}

MappedFile MappedFile::open(const std::string& path, Reading reading) {
  MappedFile file(path);
  // Without O_NONBLOCK a pipe that nobody writes to would hold us here before it can be refused.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw_system_error(path, "cannot open", errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_system_error(path, "cannot look at it", errno);
  if (!S_ISREG(status.st_mode)) throw IoError(path, fmt::format("is {}, not a file", kind_of(status.st_mode)));
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > std::numeric_limits<std::size_t>::max() / 2) throw IoError(path, "is too large for this machine");
  if (size == 0) return file;  // an empty mapping is an error of its own

  const bool eager = reading == Reading::eager || (reading == Reading::automatic && is_remote(fd.get()));
  if (!eager) {
    void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (memory != MAP_FAILED) {
      file.mapping_ = {static_cast<const std::byte*>(memory), Unmap{size}};
      mappings().add(file.bytes());
      return file;
    }
    if (reading == Reading::mapped || errno != ENODEV) throw_system_error(path, "cannot map", errno);
  }
  file.copy_ = read_whole(fd.get(), size, path);
  return file;
}

void MappedFile::Unmap::operator()(const std::byte* begin) const noexcept {
  mappings().remove({begin, size});
  ::munmap(const_cast<std::byte*>(begin), size);
}

}  // namespace imago
