// Mutates the bytes of a file: blindly, or recognising lengths, numbers and texts.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace treadle::fuzz {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15ULL + 1) {}

  uint64_t number() { return random_(); }
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }
  bool one_in(size_t n) { return below(n) == 0; }
  template <typename T>
  const T& one_of(const std::vector<T>& list) {
    return list[below(list.size())];
  }

  /// Returns a number that code often fails to handle, such as a limit of an integer type.
  uint64_t hard_number();

  /// Makes a few changes to binary contents: bits, numbers of 1 to 8 bytes, runs of bytes copied, inserted or removed.
  void change_binary(std::string& bytes);
  /// Like change_binary(). Also replaces texts that follow an 8-byte length by others (of the file or `words`), and corrects it.
  void change_stream(std::string& bytes, const std::vector<std::string>& words);
  /// Makes a few changes to JSON, CSV and the like: numbers, words, punctuation, moved pieces.
  void change_text(std::string& text);

 private:
  size_t num_changes();
  void change_number(std::string& bytes);
  void change_piece(std::string& bytes, bool keeps_size);
  void change_counted_text(std::string& bytes, const std::vector<std::string>& words);
  void change_token(std::string& text);

  std::mt19937_64 random_;
};

}  // namespace treadle::fuzz
