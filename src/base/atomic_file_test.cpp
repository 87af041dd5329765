#include "base/atomic_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "imago/error.h"
#include "imago/system.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

std::string read(const fs::path& path) { return std::string(MappedFile::open(path).text()); }

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(AtomicFile, AppearsWholeAtTheCommit) {
  const TempDir folder;
  folder.write("out", "old");
  {
    AtomicFile file(folder.path() / "out");
    file.write("new ");
    file.write(std::string(1 << 20, 'x'));
    file.write(" end");
    EXPECT_EQ(file.size(), (1u << 20) + 8);
    EXPECT_EQ(read(folder.path() / "out"), "old");
    file.commit();
  }
  EXPECT_EQ(read(folder.path() / "out"), "new " + std::string(1 << 20, 'x') + " end");
  EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(AtomicFile, WithoutACommitNothingRemains) {
  const TempDir folder;
  folder.write("out", "old");
  {
    AtomicFile file(folder.path() / "out");
    file.write(std::string(1 << 20, 'x'));
    EXPECT_EQ(entries(folder.path()), 2u) << "it is written beside the target";
  }
  EXPECT_EQ(read(folder.path() / "out"), "old");
  EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(AtomicFile, KeepsPermissionsAndLinks) {
  const TempDir folder;
  folder.write("real/out", "old");
  ASSERT_EQ(::chmod((folder.path() / "real/out").c_str(), 0640), 0);
  fs::create_symlink("real/out", folder.path() / "link");
  AtomicFile file((folder.path() / "link").string());
  file.write("new");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
  EXPECT_EQ(read(folder.path() / "real/out"), "new");
  struct stat status {};
  ASSERT_EQ(::stat((folder.path() / "real/out").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
  EXPECT_EQ(entries(folder.path() / "real"), 1u);
}

TEST(AtomicFile, RefusesWhatIsNoFile) {
  const TempDir folder;
  EXPECT_THROW(AtomicFile(folder.path().string()), IoError);
  EXPECT_THROW(AtomicFile("/dev/null"), IoError);
  EXPECT_THROW(AtomicFile((folder.path() / "no/such/folder").string()), IoError);
}

TEST(AtomicFile, AFullDiskLeavesTheOldFile) {
  const TempDir folder;
  folder.write("out", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);  // writing past the limit then fails as a full disk does
    const rlimit limit{1 << 16, 1 << 16};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      AtomicFile file(folder.path() / "out");
      file.write(std::string(1 << 20, 'x'));
      file.commit();
    } catch (const IoError&) {
      ::_exit(7);
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(read(folder.path() / "out"), "old");
  EXPECT_EQ(entries(folder.path()), 1u);
}

void remove_and_end(int) {
  remove_unfinished_files();
  ::_exit(9);
}

TEST(AtomicFile, ASignalLeavesNoDebris) {
  const TempDir folder;
  folder.write("out", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGINT, remove_and_end);
    AtomicFile committed(folder.path() / "done");
    committed.commit();
    AtomicFile first(folder.path() / "out");
    first.write(std::string(1 << 20, 'x'));
    AtomicFile second(folder.path() / "other");
    ::raise(SIGINT);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 9);
  EXPECT_EQ(read(folder.path() / "out"), "old");
  EXPECT_EQ(entries(folder.path()), 2u) << "out and done";
}

TEST(AtomicFile, ManyMayBeOpen) {
  const TempDir folder;
  {
    std::vector<std::unique_ptr<AtomicFile>> files;
    for (int i = 0; i < 100; ++i) {
      files.push_back(std::make_unique<AtomicFile>(folder.path() / std::to_string(i)));
    }
    for (int i = 0; i < 50; ++i) files[static_cast<std::size_t>(i)]->commit();
  }
  EXPECT_EQ(entries(folder.path()), 50u);
}

}  // namespace
}  // namespace imago
