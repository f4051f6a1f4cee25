#include "planner.hpp"

#include <glog/logging.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <tuple>
#include <utility>

namespace clgraft_caffe {

namespace {

const char *const service = "clgraft.caffe_layers.hosted.service";
const std::size_t most_plans = 1024;  // that are kept because they may be asked for again

std::mutex gone_mutex;
std::vector<std::string> gone;

void receive(void *with, const void *answer, std::uint64_t bytes) {
    static_cast<std::string *>(with)->assign(static_cast<const char *>(answer), static_cast<std::size_t>(bytes));
}

std::string ask_once(const std::string &question) {
    std::string answer;
    if (clg_ask(service, question.data(), question.size(), receive, &answer) != CLG_OK) throw Refusal(clg_last_error());
    return answer;
}

// Compilers and other programs that this process starts have no use for the library.
void keep_to_this_process() {
    const char *preloaded = std::getenv("LD_PRELOAD");
    if (!preloaded) return;
    std::string others;
    for (const std::string &name : words_of(preloaded))
        if (name.find("libclgraft_caffe") == std::string::npos) others += (others.empty() ? "" : " ") + name;
    setenv("LD_PRELOAD", others.c_str(), 1);
}

// protobuf's Python package may bring a libprotobuf of its own, whose symbols would be mixed up with those of Caffe's.
void keep_protobufs_apart() { setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python", 0); }

void tell_what_is_gone() {
    std::vector<std::string> numbers;
    {
        std::lock_guard<std::mutex> lock(gone_mutex);
        numbers.swap(gone);
    }
    for (const std::string &number : numbers) ask_once("drop " + number);
}

}  // namespace

std::string ask(const std::string &question) {
    tell_what_is_gone();
    return ask_once(question);
}

bool planner_runs() {
    enum { unknown, no, yes };
    static std::atomic<int> known(unknown);
    if (known != unknown) return known == yes;
    keep_to_this_process();
    keep_protobufs_apart();
    try {
        ask_once("drop 0");  // under no lock: another thread may hold the interpreter's and wait for ours
        known = yes;
    } catch (const Refusal &refusal) {
        if (known.exchange(no) == unknown)
            LOG(ERROR) << "clgraft: Caffe's own layers run, because Python cannot plan: " << refusal.what();
    }
    return known == yes;
}

void forget_layer(const std::string &number) {
    std::lock_guard<std::mutex> lock(gone_mutex);
    gone.push_back(number);
}

std::vector<std::string> lines_of(const std::string &text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

std::vector<std::string> words_of(const std::string &line) {
    std::vector<std::string> words;
    std::istringstream stream(line);
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
}

Plan::Plan(clg_context context, const Source &source) : handle(nullptr) {
    clg_graph_options options = {};
    options.size = sizeof options;
    options.outputs = source.outputs.c_str();
    options.passes = source.passes.c_str();
    options.precision = source.precision.c_str();
    const clg_status status = source.passes.empty() ? clg_plan_create(context, source.text.c_str(), &handle)
                                                    : clg_graph_create(context, source.text.c_str(), &options, &handle);
    if (status != CLG_OK) throw Refusal(clg_last_error());
    std::uint32_t count = 0;
    clg_plan_counts(handle, &count, nullptr);
    arguments.resize(count);
    for (std::uint32_t i = 0; i < count; i++) {
        arguments[i].size = sizeof arguments[i];
        clg_plan_argument(handle, i, &arguments[i]);
    }
}

Plan::~Plan() { clg_plan_destroy(handle); }

std::shared_ptr<Plan> plan_for(clg_context context, const Source &source) {
    typedef std::tuple<clg_context, std::string, std::string, std::string, std::string> Key;
    typedef std::map<Key, std::shared_ptr<Plan>> Plans;
    static std::mutex mutex;
    static Plans &plans = *new Plans();  // never destroyed: layers may outlive static objects
    const Key key(context, source.text, source.passes, source.precision, source.outputs);
    {
        std::lock_guard<std::mutex> lock(mutex);
        const Plans::iterator found = plans.find(key);
        if (found != plans.end()) return found->second;
    }
    // not locked: it may take the interpreter's lock
    std::shared_ptr<Plan> made = std::make_shared<Plan>(context, source);
    std::lock_guard<std::mutex> lock(mutex);
    if (plans.size() >= most_plans)
        for (Plans::iterator plan = plans.begin(); plan != plans.end();)
            plan = plan->second.use_count() == 1 ? plans.erase(plan) : ++plan;
    return plans.insert(std::make_pair(key, made)).first->second;
}

}  // namespace clgraft_caffe
