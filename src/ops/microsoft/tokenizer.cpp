// Implements Tokenizer (com.microsoft 1), which divides strings into tokens.
#include <algorithm>
#include <memory>

#include "core/threads/thread_pool.h"
#include "kernels/text/regex.h"
#include "kernels/text/utf8.h"
#include "ops/list.h"
#include "ops/ml/common.h"

namespace treadle::ops {
namespace {

using kernels::Regex;
using kernels::RegexMatcher;

// Finds tokens. They are the matches of `tokenexp`; or the text between matches of `separators`, applied one after the other; or single
// characters if the only separator is "". Of several possible matches, the leftmost and then the longest is taken. X [C] or [N, C] gives Y
// [C, D] or [N, C, D], where D is the largest number of tokens; shorter rows are filled with pad_value.
struct Tokenizer {
  static constexpr bool allocates = true;

  struct Options : PackedState {
    bool mark = false;
    std::string pad;
    int64_t least_chars = 1;
    bool characters = false;
    std::unique_ptr<Regex> token;
    std::vector<Regex> separators;
  };

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const Attributes& a = c.attributes();
    auto options = std::make_unique<Options>();
    options->mark = a.get_int("mark") != 0;
    options->pad = a.get_string("pad_value");
    options->least_chars = a.get_int("mincharnum", 1);
    if (options->least_chars < 1)
      throw Error(ErrorCode::invalid_model, fmt::format("mincharnum = {}; expected at least 1", options->least_chars));
    const auto& separators = a.get_strings("separators");
    std::string_view expression = a.get_string("tokenexp");
    if (separators.empty() == expression.empty())
      throw Error(ErrorCode::invalid_model, "just one of tokenexp and separators must be given");
    if (!expression.empty()) {
      options->token = std::make_unique<Regex>(expression);
      return options;
    }
    options->characters = separators.size() == 1 && separators[0].empty();
    if (options->characters && options->least_chars > 1)
      throw Error(ErrorCode::invalid_model,
                  fmt::format("mincharnum = {} leaves no token when every character is one", options->least_chars));
    if (!options->characters)
      for (const std::string& separator : separators) options->separators.emplace_back(separator);
    return options;
  }

  static Tokenizer bind(BindContext&) { return {}; }

  static std::vector<std::string_view> split_characters(std::string_view text) {
    std::vector<std::string_view> tokens;
    for (size_t at = 0; at < text.size();) {
      size_t size = kernels::decode_utf8(text, at).size_bytes;
      tokens.push_back(text.substr(at, size));
      at += size;
    }
    return tokens;
  }

  static std::vector<std::string_view> matches(const Regex& regex, std::string_view text) {
    RegexMatcher matcher(regex);
    std::vector<std::string_view> tokens;
    for (size_t from = 0; from <= text.size();) {
      auto match = matcher.search(text, from);
      if (!match) break;
      auto [first, last] = *match;
      tokens.push_back(text.substr(first, last - first));
      if (last > first)
        from = last;
      else
        from = first + (first < text.size() ? kernels::decode_utf8(text, first).size_bytes : 1);
    }
    return tokens;
  }

  static std::vector<std::string_view> split(const std::vector<Regex>& separators, std::string_view text) {
    std::vector<std::string_view> tokens{text};
    for (const Regex& separator : separators) {
      std::vector<std::string_view> pieces;
      for (std::string_view token : tokens) {
        const char* next = token.data();
        for (std::string_view match : matches(separator, token)) {
          if (match.empty()) continue;
          pieces.emplace_back(next, static_cast<size_t>(match.data() - next));
          next = match.data() + match.size();
        }
        pieces.emplace_back(next, static_cast<size_t>(token.data() + token.size() - next));
      }
      tokens = std::move(pieces);
    }
    return tokens;
  }

  void run(RunContext& c) const {
    const auto& options = c.packed<Options>();
    const Tensor& x = c.input(0).tensor();
    std::span<std::string> texts = x.span<std::string>();
    std::vector<std::vector<std::string_view>> tokens(texts.size());
    parallel_for(c.pool(), static_cast<int64_t>(texts.size()), 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::string_view text = texts[static_cast<size_t>(i)];
        auto& own = tokens[static_cast<size_t>(i)];
        if (options.characters)
          own = split_characters(text);
        else if (options.token)
          own = matches(*options.token, text);
        else
          own = split(options.separators, text);
        std::erase_if(own, [&](std::string_view token) { return kernels::count_utf8(token) < options.least_chars; });
      }
    });
    size_t most = 0;
    for (const auto& own : tokens) most = std::max(most, own.size());
    if (most > 0 && options.mark) most += 2;  // if no text has a token, there are no marks
    Shape shape = x.shape();
    shape.push_back(static_cast<int64_t>(most));
    auto* y = c.allocate_output(0, shape).data<std::string>();
    if (most == 0) return;
    for (const auto& own : tokens) {
      auto* end = y + most;
      if (options.mark) *y++ = "\x02";
      for (std::string_view token : own) y++->assign(token);
      if (options.mark) *y++ = "\x03";
      while (y != end) *y++ = options.pad;
    }
  }
};

void infer(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, DType::string);
  if (c.rank(0) != 1 && c.rank(0) != 2)
    throw Error(ErrorCode::invalid_argument, fmt::format("X has {} axes; expected [C] or [N,C]", c.rank(0)));
  SymbolicShape shape = c.shape(0);
  shape.push_back(c.data_dependent_dim("tokens"));
  c.set_output(0, DType::string, std::move(shape));
}

}  // namespace

std::vector<OpDef> microsoft_tokenizer_ops() {
  using Required = AttributeDef::Required;
  return {{.name = "Tokenizer",
           .domain = "com.microsoft",
           .since = {1},
           .inputs = {{"X", kString}},
           .outputs = {{"Y", kString}},
           .attributes = {{"mark", Required{}}, {"mincharnum", Required{}}, {"pad_value", Required{}}, {"separators"}, {"tokenexp"}},
           .infer = infer,
           .kernels = {kernel<Tokenizer>()}}};
}

}  // namespace treadle::ops
