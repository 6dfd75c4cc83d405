// Reading the JSON of profile_to_json().
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/error.h"

namespace treadle::profile {

using Document = nlohmann::ordered_json;

/// @param throws  false: text that is no JSON gives a discarded document instead of Document::parse_error.
/// @throws Error(invalid_argument) for text whose lists lie too deep in lists
Document parse_json(std::string_view text, bool throws = true);
/// @throws Error(invalid_argument) for a document that is no profile, or one of another version.
Document checked_profile(Document document);
/// Of a profile's text, without its timeline: null stands for it.
/// @throws Error(invalid_argument) for text that is no profile, or one of another version.
Document parse_document(std::string_view text);

/// Calls read(), which takes fields of a document for what they should be.
/// @throws Error(invalid_argument) where one is something else
template <typename Read>
auto reading(const Read& read) {
  try {
    return read();
  } catch (const Document::parse_error& error) {  // whose text repeats bytes that need not be UTF-8
    throw Error(ErrorCode::invalid_argument, "the profile is damaged: it is no JSON at byte " + std::to_string(error.byte));
  } catch (const Document::exception& error) {
    throw Error(ErrorCode::invalid_argument, std::string("the profile is damaged: ") + error.what());
  }
}

/// "[1x64x56x56] -> [1x64x56x56]": computed inputs and outputs of a node, for people.
std::string shapes_of(const Document& node);

/// Columns are as wide as their widest cell; text is left-aligned, numbers are right-aligned.
class TextTable {
 public:
  struct Column {
    std::string title;
    bool number = false;
    size_t max_width = 1000;  ///< longer text loses its middle
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string to_text(const std::string& indent = "  ") const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Indices of the nodes in the order asked for. @throws Error(invalid_argument) for an unknown order.
std::vector<size_t> sorted_nodes(const Document& document, std::string_view sort);

}  // namespace treadle::profile
