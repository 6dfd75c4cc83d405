// The kinds of untrusted files. The fuzzer loads each file, and uses it if loading succeeds.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/fuzz/mutation.h"

namespace treadle::fuzz {

struct FileKind {
  std::string name, extension;
  /// Returns contents of valid files, made by the library.
  std::vector<std::string> (*seeds)(const std::filesystem::path& folder);
  /// Returns mutated contents. Checksums and lengths are corrected where an attacker would correct them.
  std::string (*changed)(const std::string& seed, Mutator& mutator);
  /// Loads the file and uses it. Errors of the library are valid results. `number` seeds the feeds.
  void (*use)(const std::filesystem::path& file, uint64_t number);
};

const std::vector<FileKind>& file_kinds();

// These functions return the kinds of files. Each is defined in a source file of its own.
FileKind compiled_models();
FileKind ort_models();
std::vector<FileKind> training_files();
std::vector<FileKind> profile_files();
std::vector<FileKind> data_files();
FileKind shared_pages();

std::string contents_of(const std::filesystem::path& file);
void write_contents(const std::filesystem::path& file, const std::string& contents);

}  // namespace treadle::fuzz
