// What the optimiser made of a model, and what a run needs, without running it: for the command and for Python.
#pragma once

#include <string>
#include <string_view>

#include "cli/inputs.h"
#include "profile/model/explanation.h"
#include "treadle/model.h"
#include "treadle/session.h"

namespace treadle::cli {

struct ExplainRequest {
  std::string name;  ///< of the model, for the text
  InputOptions inputs;
  SessionOptions session;
};

/// Measures the machine's peaks.
profile::Explanation explain_model(const Model& model, const ExplainRequest& request);
/// What became of a node of the model, or where one that runs comes from. @throws Error(not_found)
profile::NodeHistory explain_node(const profile::Explanation& explanation, const std::string& node);
/// Both for people. @param top  nodes shown; 0: all
std::string explanation_text(const profile::Explanation& explanation, int top);
std::string node_history_text(const profile::NodeHistory& history);
/// The contents of a file: .html is a page, .json the document. @throws Error(invalid_argument) for another name
std::string explanation_file(std::string_view path, const profile::Explanation& explanation);
void check_explanation_file(std::string_view path);

}  // namespace treadle::cli
