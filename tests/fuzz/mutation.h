// Changes to the bytes of a file: blind ones, and ones that keep to what lengths, numbers and texts look like.
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

  /// Numbers that code forgets.
  uint64_t hard_number();

  /// A few changes to binary contents: bits, numbers of 1 to 8 bytes, runs of bytes copied, inserted and taken out.
  void change_binary(std::string& bytes);
  /// The same, and texts behind their length of 8 bytes, which get other texts of the file, or of `words`, with the length put right.
  void change_stream(std::string& bytes, const std::vector<std::string>& words);
  /// A few changes to JSON, CSV and the like: numbers, words, punctuation, pieces that move.
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
