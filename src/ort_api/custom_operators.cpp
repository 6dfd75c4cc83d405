// Custom operators of clients.
#include "ort_api/api.h"

namespace treadle::ort {

void register_operators(const OrtSessionOptions&) {}

void add_custom_operators(OrtApi&) {}

}  // namespace treadle::ort
