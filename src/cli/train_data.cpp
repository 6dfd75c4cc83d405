#include "cli/train_data.h"

#include <numeric>
#include <vector>

namespace treadle::cli {

std::shared_ptr<const train::Dataset> part_of_rank(std::shared_ptr<const train::Dataset> data, const train::LoaderOptions& loader) {
  const int64_t count = data->num_samples(), first = count * loader.rank / loader.num_ranks,
                end = count * (loader.rank + 1) / loader.num_ranks;
  if (end - first == count) return data;
  std::vector<int64_t> samples(static_cast<size_t>(end - first));
  std::iota(samples.begin(), samples.end(), first);
  return train::subset_of(std::move(data), std::move(samples));
}

}  // namespace treadle::cli
