// Converts reports and values in them to JSON, for the writers of profile files.
#pragma once

#include <string>
#include <string_view>

#include "treadle/profile_report.h"

namespace treadle::profile {

/// Like profile_to_json(), but with another form of the timeline. @param timeline  JSON text; empty: no timeline
std::string report_to_json(const ProfileReport& report, std::string_view timeline);

/// Returns a phrase for the verdict of a comparison, such as "faster" or "cannot tell".
const char* change_word(Change change);

/// Formats a text as a JSON string. Replaces bytes that are not UTF-8.
std::string json_text(const std::string& text);
std::string json_text(double number);

}  // namespace treadle::profile
