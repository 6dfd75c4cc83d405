#include "profile/model/json.h"

#include "core/base/json_depth.h"

namespace treadle::profile {

Document parse_json(std::string_view text, bool throws) {
  if (!is_shallow_json(text)) throw_damaged("it has lists in lists too deep");
  return Document::parse(text, nullptr, throws);
}

std::string to_text(const Document& document, int indent) { return document.dump(indent, ' ', false, Document::error_handler_t::replace); }

void throw_damaged(const std::string& what) { throw Error(ErrorCode::invalid_argument, "the profile is damaged: " + what); }

}  // namespace treadle::profile
