#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "imago/error.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

using testing::TempDir;

std::string message_of(const std::string& path) {
  try {
    MappedFile::open(path);
  } catch (const IoError& error) {
    return error.what();
  }
  return "no error";
}

TEST(MappedFile, GivesTheBytesMappedOrCopied) {
  const TempDir folder;
  folder.write("a", std::string("one\0two", 7));
  for (const Reading reading : {Reading::automatic, Reading::mapped, Reading::eager}) {
    const MappedFile file = MappedFile::open(folder.path() / "a", reading);
    EXPECT_EQ(file.text(), std::string_view("one\0two", 7));
    EXPECT_EQ(file.path(), folder.path() / "a");
  }
  EXPECT_TRUE(MappedFile::open(folder.path() / "a", Reading::mapped).is_mapped());
  EXPECT_FALSE(MappedFile::open(folder.path() / "a", Reading::eager).is_mapped());
}

TEST(MappedFile, BytesStayWhereTheyAreWhenItMoves) {
  const TempDir folder;
  folder.write("a", "text");
  folder.write("b", "other");
  for (const Reading reading : {Reading::mapped, Reading::eager}) {
    MappedFile a = MappedFile::open(folder.path() / "a", reading);
    const std::string_view text = a.text();
    MappedFile moved = std::move(a);
    EXPECT_EQ(moved.text().data(), text.data());
    moved = MappedFile::open(folder.path() / "b", reading);
    EXPECT_EQ(moved.text(), "other");
  }
}

TEST(MappedFile, ReleasedPagesComeBackAndCopiesAreLeftAlone) {
  const TempDir folder;
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += static_cast<char>('a' + i % 23);
  folder.write("a", text);
  for (const Reading reading : {Reading::mapped, Reading::eager}) {
    const MappedFile file = MappedFile::open(folder.path() / "a", reading);
    EXPECT_EQ(file.text(), text);
    prefetch_pages(file.bytes().subspan(5000, 50'000));
    EXPECT_EQ(release_pages(file.bytes().subspan(5000, 50'000)), reading == Reading::mapped);
    EXPECT_EQ(file.text(), text);
  }
  EXPECT_FALSE(release_pages(std::as_bytes(std::span(text))));
  EXPECT_EQ(text[7], 'a' + 7) << "memory of others";
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  const TempDir folder;
  folder.write("empty", "");
  EXPECT_TRUE(MappedFile::open(folder.path() / "empty").bytes().empty());
  EXPECT_TRUE(MappedFile::open(folder.path() / "empty", Reading::eager).bytes().empty());
}

TEST(MappedFile, SaysWhatIsWrong) {
  const TempDir folder;
  const std::string missing = folder.path() / "missing";
  EXPECT_EQ(message_of(missing), missing + ": cannot open: No such file or directory");
  EXPECT_EQ(message_of(folder.path()), folder.path().string() + ": is a folder, not a file");
  EXPECT_EQ(message_of("/dev/zero"), "/dev/zero: is a device, not a file");
  const std::string pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(message_of(pipe), pipe + ": is a pipe, not a file");
  const std::string loop = folder.path() / "loop";
  std::filesystem::create_symlink(loop, loop);
  EXPECT_NE(message_of(loop).find("symbolic links"), std::string::npos);
}

}  // namespace
}  // namespace imago
