// The kinds of files that others may write, and what is done with each: it is loaded, and where that succeeds, it is used.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/fuzz/mutation.h"

namespace treadle::fuzz {

struct FileKind {
  std::string name, extension;
  /// Contents of whole files, made by the library itself.
  std::vector<std::string> (*seeds)(const std::filesystem::path& folder);
  /// Other contents, whose checksums and lengths are right where only who wants to harm would put them right.
  std::string (*changed)(const std::string& seed, Mutator& mutator);
  /// Loads the file, and uses it. Errors of the library are fine. `number` chooses feeds.
  void (*use)(const std::filesystem::path& file, uint64_t number);
};

const std::vector<FileKind>& file_kinds();

// In their own files.
FileKind compiled_models();
FileKind ort_models();
std::vector<FileKind> training_files();
std::vector<FileKind> profile_files();
std::vector<FileKind> data_files();
FileKind shared_pages();

std::string contents_of(const std::filesystem::path& file);
void write_contents(const std::filesystem::path& file, const std::string& contents);

}  // namespace treadle::fuzz
