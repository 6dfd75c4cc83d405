// JSON of a profile's parts, for what is written with them.
#pragma once

#include <string>
#include <string_view>

#include "treadle/profile_report.h"

namespace treadle::profile {

/// As profile_to_json(), with another timeline. @param timeline  JSON; empty: none
std::string report_to_json(const ProfileReport& report, std::string_view timeline);

/// "faster", "cannot tell".
const char* change_word(Change change);

/// As JSON writes them. What is not UTF-8 is replaced.
std::string json_text(const std::string& text);
std::string json_text(double number);

}  // namespace treadle::profile
