// Questions to the Python core, which runs inside of this process, and plans of its problems and graphs.
#ifndef CLGRAFT_CAFFE_PLANNER_HPP
#define CLGRAFT_CAFFE_PLANNER_HPP

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "clgraft.h"

namespace clgraft_caffe {

// A layer, a shape or a run that clgraft does not serve; the text says why.
class Refusal : public std::runtime_error {
  public:
    explicit Refusal(const std::string &reason) : std::runtime_error(reason) {}
};

// The core's answer. Throws Refusal.
std::string ask(const std::string &question);

// Whether the core can be asked at all. Where it cannot, the reason is logged once.
bool planner_runs();

// Notes that a layer is destroyed. The core is told with a later question: it may not run any more at this time.
void forget_layer(const std::string &number);

std::vector<std::string> lines_of(const std::string &text);
std::vector<std::string> words_of(const std::string &line);

// What a plan is of: a problem, or a graph with its options (clg_graph_options). A problem has no passes.
struct Source {
    std::string text, passes, precision, outputs;
};

// A plan with what its arguments are. Equal sources share one.
struct Plan {
    Plan(clg_context context, const Source &source);
    ~Plan();
    Plan(const Plan &) = delete;
    Plan &operator=(const Plan &) = delete;

    clg_plan handle;
    std::vector<clg_argument> arguments;
};
std::shared_ptr<Plan> plan_for(clg_context context, const Source &source);

}  // namespace clgraft_caffe

#endif
