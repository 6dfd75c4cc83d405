#include "tests/fuzz/file_kinds.h"

#include <iterator>

namespace treadle::fuzz {

const std::vector<FileKind>& file_kinds() {
  static const std::vector<FileKind> all = [] {
    std::vector<FileKind> kinds{compiled_models(), ort_models()};
    for (std::vector<FileKind>& some : std::vector{training_files(), profile_files(), data_files()})
      kinds.insert(kinds.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
    kinds.push_back(shared_pages());
    return kinds;
  }();
  return all;
}

}  // namespace treadle::fuzz
