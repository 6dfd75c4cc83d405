// Reads CSV files as defined by RFC 4180.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "core/base/nearest.h"
#include "core/base/pattern.h"
#include "core/base/utf8.h"
#include "core/files/file.h"
#include "treadle/data.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

// Splits the text into lines of fields. A quoted field may contain separators and line ends, and quotes written twice.
class CsvLines {
 public:
  CsvLines(std::string_view text, char separator, const std::string& path) : text_(text), separator_(separator), path_(path) {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
  }

  // Reads the next line that is not empty.
  // @return false at the end.
  bool next(std::vector<std::string>& fields) {
    while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) line_ += text_[at_++] == '\n';
    fields.clear();
    if (at_ >= text_.size()) return false;
    first_line_ = line_;
    while (true) {
      fields.push_back(field());
      if (at_ < text_.size() && text_[at_] == separator_) {
        ++at_;
        continue;
      }
      if (at_ < text_.size() && text_[at_] == '\r') ++at_;
      if (at_ < text_.size() && text_[at_] != '\n') fail("something stands behind a quoted field");
      if (at_ < text_.size()) ++at_, ++line_;
      return true;
    }
  }

  // Returns the number of the line that was read last.
  int64_t line() const { return first_line_; }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}, line {}: {}", path_, first_line_, what));
  }

 private:
  std::string field() {
    if (at_ >= text_.size() || text_[at_] != '"') {
      const size_t end = std::min(text_.find_first_of(std::string{separator_, '\n', '\r'}, at_), text_.size());
      std::string plain(text_.substr(at_, end - at_));
      at_ = end;
      return plain;
    }
    std::string quoted;
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '"') {
        if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') {
          ++at_;
          return quoted;
        }
        ++at_;
      }
      line_ += text_[at_] == '\n';
      quoted += text_[at_];
    }
    fail("a quoted field has no end");
  }

  std::string_view text_;
  char separator_;
  std::string path_;
  size_t at_ = 0;
  int64_t line_ = 1, first_line_ = 1;
};

template <typename T>
bool read_number(std::string_view text, T& value) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc() && end == text.data() + text.size();
}

// The cells of the label column, and the file's line of each.
struct LabelCells {
  std::vector<std::string> texts;
  std::vector<int64_t> lines;
  std::string column;

  [[noreturn]] void fail(const std::string& path, size_t i, const std::string& what) const {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}, line {}: the label \"{}\" of the column \"{}\" {}", path, lines[i], texts[i], column, what));
  }
};

Tensor labels_of(const LabelCells& cells, std::vector<std::string>& classes, const std::optional<ClassRange>& range,
                 const std::string& path) {
  const std::vector<std::string>& texts = cells.texts;
  const auto check = [&](size_t i, int64_t label) {
    if (!range || label == range->ignored || (label >= 0 && label < range->count)) return;
    cells.fail(path, i,
               classes.empty() ? fmt::format("is outside [0, {}): the model has {} classes", range->count, range->count)
                               : fmt::format("is number {} of the {} classes, counted from 0: the model has {} classes", label,
                                             classes.size(), range->count));
  };
  const auto count = static_cast<int64_t>(texts.size());
  if (classes.empty()) {
    Tensor integers(DType::int64, {count}), numbers(DType::float32, {count});
    bool all_integers = true, all_numbers = true;
    for (size_t i = 0; i < texts.size(); ++i) {
      all_integers = all_integers && read_number(texts[i], integers.data<int64_t>()[i]);
      all_numbers = all_numbers && read_number(texts[i], numbers.data<float>()[i]);
    }
    for (size_t i = 0; all_integers && i < texts.size(); ++i) check(i, integers.data<int64_t>()[i]);
    if (all_integers) return integers;
    if (all_numbers) return numbers;
    const std::set<std::string> sorted(texts.begin(), texts.end());
    classes.assign(sorted.begin(), sorted.end());
  }
  Tensor places(DType::int64, {count});
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto found = std::find(classes.begin(), classes.end(), texts[i]);
    if (found == classes.end()) cells.fail(path, i, fmt::format("is no class; the classes: {}", fmt::join(classes, ", ")));
    places.data<int64_t>()[i] = found - classes.begin();
    check(i, places.data<int64_t>()[i]);
  }
  return places;
}

struct CsvColumns {
  std::vector<size_t> features;
  std::optional<size_t> label;
};

CsvColumns choose_columns(const std::vector<std::string>& names, const CsvOptions& options, const std::string& path) {
  CsvColumns chosen;
  auto must_exist = [&](const std::string& pattern) {
    if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return matches(pattern, name); }))
      throw Error(ErrorCode::not_found, fmt::format("{} has no column \"{}\"; the nearest: {}; it has {} columns", path, pattern,
                                                    nearest_names(pattern, names), names.size()));
  };
  for (const std::string& pattern : options.features) must_exist(pattern);
  if (!options.label.empty()) {
    const auto found = std::find(names.begin(), names.end(), options.label);
    if (found == names.end()) must_exist(options.label);
    if (found == names.end()) throw Error(ErrorCode::not_found, fmt::format("{} has no column \"{}\"", path, options.label));
    chosen.label = static_cast<size_t>(found - names.begin());
  }
  for (size_t i = 0; i < names.size(); ++i)
    if (options.features.empty() ? i != chosen.label : matches_any(options.features, names[i])) chosen.features.push_back(i);
  if (chosen.features.empty()) throw Error(ErrorCode::invalid_argument, fmt::format("{} has no column of features", path));
  return chosen;
}

}  // namespace

CsvTable read_csv(const std::string& path, const CsvOptions& options, const std::vector<std::string>& classes) {
  const auto file = map_file(path);
  const std::string_view text(reinterpret_cast<const char*>(file->data()), file->size_bytes());
  if (const size_t at = find_not_utf8(text); at != std::string_view::npos)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}, line {}: the byte 0x{:02x} is no part of UTF-8, which tables are read in", path,
                            std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1,
                            static_cast<unsigned char>(text[at])));
  CsvLines lines(text, options.separator, path);
  std::vector<std::string> names, fields;
  LabelCells labels;
  if (!lines.next(names))
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: the file is empty; its first line names the columns", path));
  const CsvColumns columns = choose_columns(names, options, path);
  std::vector<float> numbers;
  int64_t rows = 0;
  for (; lines.next(fields); ++rows) {
    if (fields.size() != names.size()) lines.fail(fmt::format("{} fields, where the first line names {}", fields.size(), names.size()));
    for (size_t column : columns.features) {
      float value = 0;
      if (!read_number(fields[column], value))
        lines.fail(fmt::format("\"{}\" is no number, in the column \"{}\"", fields[column], names[column]));
      numbers.push_back(value);
    }
    if (columns.label) labels.texts.push_back(fields[*columns.label]), labels.lines.push_back(lines.line());
  }
  CsvTable table{.classes = classes};
  table.features = Tensor::of<float>({rows, static_cast<int64_t>(columns.features.size())}, numbers);
  for (size_t column : columns.features) table.feature_names.push_back(names[column]);
  labels.column = options.label;
  if (columns.label) table.labels = labels_of(labels, table.classes, options.label_classes, path);
  return table;
}

}  // namespace treadle::train
