// Explains how the optimiser changed a model and what a run will need, without running it. Used by the command and by Python.
#pragma once

#include <string>
#include <string_view>

#include "cli/inputs.h"
#include "profile/model/explanation.h"
#include "treadle/model.h"
#include "treadle/session.h"

namespace treadle::cli {

struct ExplainRequest {
  std::string name;  ///< name of the model
  InputOptions inputs;
  SessionOptions session;
};

/// Explains a model. Also measures this machine's peak speeds.
profile::Explanation explain_model(const Model& model, const ExplainRequest& request);
/// Describes what the optimiser did to a node of the original model, or from which nodes a node of the optimised model was made.
/// @throws Error(not_found)
profile::NodeHistory explain_node(const profile::Explanation& explanation, const std::string& node);
/// Formats the explanation for people. @param top  number of nodes shown; 0: all
std::string explanation_text(const profile::Explanation& explanation, int top);
std::string node_history_text(const profile::NodeHistory& history);
/// Returns the contents of a file: a page for .html, a document for .json. @throws Error(invalid_argument) for another extension
std::string explanation_file(std::string_view path, const profile::Explanation& explanation);
void check_explanation_file(std::string_view path);

}  // namespace treadle::cli
