// Converts parts of a profile to JSON, for writers.
#pragma once

#include <string>
#include <string_view>

#include "treadle/profile_report.h"

namespace treadle::profile {

/// Like profile_to_json(), with another timeline. @param timeline  JSON; empty: none
std::string report_to_json(const ProfileReport& report, std::string_view timeline);

/// Returns a phrase such as "faster" or "cannot tell".
const char* change_word(Change change);

/// Formats a text as JSON. Replaces bytes that are not UTF-8.
std::string json_text(const std::string& text);
std::string json_text(double number);

}  // namespace treadle::profile
