#include "core/files/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "treadle/error.h"

namespace treadle {
namespace {
namespace fs = std::filesystem;

class File : public testing::Test {
 protected:
  File() {
    std::string pattern = (fs::temp_directory_path() / "treadle-file-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~File() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void put(const std::string& name, const std::string& content) const { std::ofstream(folder_ / name, std::ios::binary) << content; }
  std::string get(const std::string& name) const {
    std::ifstream in(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t num_files() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator())); }
  static std::string text(const Storage& storage) { return {reinterpret_cast<const char*>(storage.data()), storage.size_bytes()}; }
  static std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }
  template <typename Body>
  static ErrorCode code_of(Body body) {
    try {
      body();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::ok;
  }

  fs::path folder_;
};

TEST_F(File, MappedAndReadContentsAreTheSame) {
  put("a", "content");
  EXPECT_EQ(text(*map_file(path("a"))), "content");
  EXPECT_EQ(text(*read_file(path("a"))), "content");
  EXPECT_FALSE(map_file(path("a"))->writable());
  put("empty", "");
  EXPECT_EQ(map_file(path("empty"))->size_bytes(), 0u);
  EXPECT_EQ(read_file(path("empty"))->size_bytes(), 0u);
}

TEST_F(File, WhatIsNotARegularFileIsRefused) {
  EXPECT_EQ(code_of([&] { map_file(path("none")); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { map_file(folder_.string()); }), ErrorCode::io_error);
  EXPECT_EQ(code_of([&] { read_file("/dev/zero"); }), ErrorCode::io_error);
  EXPECT_EQ(code_of([&] { AtomicFile file("/dev/null"); }), ErrorCode::io_error);
  EXPECT_EQ(code_of([&] { AtomicFile file(path("none/a")); }), ErrorCode::io_error);
}

TEST_F(File, AppearsAtTheCommitAndNotBefore) {
  put("a", "old");
  std::string large(1 << 20, 'x');
  {
    AtomicFile file(path("a"));
    file.write(bytes("new "));
    file.write(bytes(large));
    file.write_zeros(3);
    EXPECT_EQ(file.size_bytes(), 4 + large.size() + 3);
    EXPECT_EQ(get("a"), "old");
    file.commit();
  }
  EXPECT_EQ(get("a"), "new " + large + std::string(3, '\0'));
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(File, WithoutACommitNothingIsLeft) {
  put("a", "old");
  { AtomicFile(path("a")).write(bytes("new")); }
  EXPECT_EQ(get("a"), "old");
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(File, ALinkIsKeptAndItsTargetReplaced) {
  put("target", "old");
  fs::create_symlink("target", folder_ / "link");
  AtomicFile file(path("link"));
  file.write(bytes("new"));
  file.commit();
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(get("target"), "new");
}

int permissions(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<int>(info.st_mode & 07777) : -1;
}

TEST_F(File, AReplacedFileKeepsItsPermissions) {
  for (const int mode : {0600, 0640, 0664, 0444, 0755}) {
    put("a", "old");
    ASSERT_EQ(::chmod(path("a").c_str(), static_cast<mode_t>(mode)), 0);
    AtomicFile file(path("a"));
    for (const auto& entry : fs::directory_iterator(folder_))
      EXPECT_EQ(permissions(entry.path().string()), mode);  // the file also has these permissions while it is written
    file.write(bytes("new"));
    file.commit();
    EXPECT_EQ(get("a"), "new");
    EXPECT_EQ(permissions(path("a")), mode);
    fs::remove(folder_ / "a");
  }
}

TEST_F(File, ANewFileHasWhatTheUmaskLeaves) {
  const mode_t before = ::umask(0027);
  {
    AtomicFile file(path("a"));
    file.commit();
  }
  ::umask(before);
  EXPECT_EQ(permissions(path("a")), 0640);
}

TEST_F(File, ALinksTargetKeepsItsPermissions) {
  put("target", "old");
  fs::create_symlink("target", folder_ / "link");
  ASSERT_EQ(::chmod(path("target").c_str(), 0600), 0);
  AtomicFile file(path("link"));
  file.commit();
  EXPECT_EQ(permissions(path("target")), 0600);
}

TEST_F(File, PagesThatWereDroppedHoldWhatTheyHeld) {
  std::string content(1 << 20, ' ');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 >> 7);
  put("a", content);
  std::shared_ptr<Storage> mapped = map_file(path("a"));
  drop_mapped_pages(mapped->data() + 100, mapped->size_bytes() - 100);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(mapped->data()), mapped->size_bytes()), content);
}

long resident_kb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssFile:")) return std::stol(line.substr(8));
  return 0;
}

TEST_F(File, PagesAreDroppedOfManySmallPieces) {
  constexpr size_t kBytes = size_t{16} << 20, kPiece = 10'000;
  put("a", std::string(kBytes, 'x'));
  std::shared_ptr<Storage> mapped = map_file(path("a"));
  for (size_t at = 0; at < kBytes; at += 4096) ASSERT_EQ(mapped->data()[at], std::byte{'x'});
  const long before = resident_kb();
  if (before == 0) GTEST_SKIP() << "the system does not tell";
  for (size_t at = 0; at + kPiece <= kBytes; at += kPiece) EXPECT_TRUE(drop_mapped_pages(mapped->data() + at, kPiece));
  EXPECT_LT(resident_kb(), before - 12 * 1024);
}

TEST_F(File, FewPagesAreDroppedWhenAskedFor) {
  put("a", std::string(900'000, 'x'));
  std::shared_ptr<Storage> mapped = map_file(path("a"));
  for (size_t at = 0; at < 900'000; at += 4096) ASSERT_EQ(mapped->data()[at], std::byte{'x'});
  const long before = resident_kb();
  if (before == 0) GTEST_SKIP() << "the system does not tell";
  EXPECT_TRUE(drop_mapped_pages(mapped->data(), 900'000));
  drop_waiting_pages();
  EXPECT_LT(resident_kb(), before - 700);
  EXPECT_EQ(mapped->data()[899'999], std::byte{'x'});
}

TEST_F(File, PagesOfOtherMemoryAreNotDropped) {
  auto own = Storage::allocate(1 << 20);
  std::memset(own->data(), 7, own->size_bytes());
  drop_mapped_pages(own->data(), own->size_bytes());
  put("a", std::string(4096, 'x'));
  { map_file(path("a")); }  // the result is dropped, so the file is unmapped at once
  drop_mapped_pages(own->data(), own->size_bytes());
  for (size_t i = 0; i < own->size_bytes(); ++i) ASSERT_EQ(own->data()[i], std::byte{7});
}

TEST_F(File, ZerosOfAnyCountAreWritten) {
  AtomicFile file(path("a"));
  file.write_zeros(0);
  file.write_zeros(1'000'000);
  file.commit();
  EXPECT_EQ(get("a"), std::string(1'000'000, '\0'));
}

}  // namespace
}  // namespace treadle
