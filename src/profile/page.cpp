// A profile as one page: the document, and a script that shows it.
#include <array>
#include <string>
#include <utility>

#include "profile/document.h"
#include "profile_page.h"
#include "treadle/profile.h"

namespace treadle {

std::string profile_to_html(std::string_view json) {
  // No "<" stays in the document: text of a model cannot end the script that holds it.
  std::string document;
  for (char c : profile::parse_document(json).dump(-1, ' ', false, profile::Document::error_handler_t::replace)) {
    if (c == '<')
      document += "\\u003c";
    else
      document += c;
  }
  std::string page = profile::kPageHtml;
  const std::array<std::pair<std::string_view, std::string_view>, 3> parts{
      {{"/*SCRIPT*/", profile::kPageScript}, {"/*PROFILE*/", document}, {"/*STYLE*/", profile::kPageStyle}}};
  // From the last to the first, so that a mark in what was put in is not found.
  for (const auto& [mark, text] : parts) page.replace(page.rfind(mark, page.size()), mark.size(), text);
  return page;
}

}  // namespace treadle
