#include "core/files/temporary.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <span>

#include "core/files/file.h"

namespace {

namespace fs = std::filesystem;

fs::path scratch() {
  fs::path folder = fs::path(::testing::TempDir()) / ("temporary-" + std::to_string(::getpid()));
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

TEST(Temporary, NotedFilesAndFoldersAreRemovedAndForgottenOnesStay) {
  const fs::path folder = scratch();
  std::ofstream(folder / "noted") << "text";
  std::ofstream(folder / "forgotten") << "text";
  fs::create_directory(folder / "full");
  for (int i = 0; i < 200; ++i) std::ofstream(folder / "full" / ("a file with a long name, number " + std::to_string(i))) << i;
  for (const char* name : {"noted", "forgotten", "full"}) treadle::note_temporary((folder / name).string());
  treadle::forget_temporary((folder / "forgotten").string());
  treadle::remove_temporaries();
  EXPECT_FALSE(fs::exists(folder / "noted"));
  EXPECT_FALSE(fs::exists(folder / "full"));
  EXPECT_TRUE(fs::exists(folder / "forgotten"));
  for (const char* name : {"noted", "full"}) treadle::forget_temporary((folder / name).string());
  fs::remove_all(folder);
}

TEST(Temporary, AFileThatIsBeingWrittenIsNotedUntilItIsCommitted) {
  const fs::path folder = scratch();
  const std::string path = (folder / "file").string();
  {
    treadle::AtomicFile file(path);
    file.write(std::as_bytes(std::span("text", 4)));
    treadle::remove_temporaries();
    EXPECT_TRUE(fs::is_empty(folder));
  }
  {
    treadle::AtomicFile file(path);
    file.commit();
  }
  treadle::remove_temporaries();
  EXPECT_TRUE(fs::exists(path));
  fs::remove_all(folder);
}

TEST(Temporary, PathsThatAreTooLongOrTooManyAreLeftAlone) {
  treadle::note_temporary(std::string(5000, 'x'));
  for (int i = 0; i < 100; ++i) treadle::note_temporary("/nonexistent/" + std::to_string(i));
  treadle::remove_temporaries();
  for (int i = 0; i < 100; ++i) treadle::forget_temporary("/nonexistent/" + std::to_string(i));
}

}  // namespace
