#include "program.hpp"

#include <cctype>
#include <cstdlib>
#include <cstring>

namespace clgraft_caffe {

namespace {

double number_of(const std::string &bits) {  // in hexadecimal digits: they depend on no locale and lose nothing
    const std::uint64_t whole = std::strtoull(bits.c_str(), nullptr, 16);
    double number;
    std::memcpy(&number, &whole, sizeof number);
    return number;
}

std::size_t index_of(const std::string &parameter) {
    return static_cast<std::size_t>(std::atoi(parameter.c_str() + 1));
}

}  // namespace

template <typename Dtype>
caffe::Blob<Dtype> *Memory<Dtype>::find(char kind, std::size_t index) const {
    switch (kind) {
    case 'b': return bottom->at(index);
    case 't': return top->at(index);
    case 'p': return parameters->at(index).get();
    default: return arrays.at(index).get();
    }
}

template <typename Dtype>
Program<Dtype>::Program(const std::vector<std::string> &lines, const std::string &layer, Place place,
                        Memory<Dtype> *memory)
    : place_(place), context_(context_for(place, memory->device)) {
    std::size_t arrays = 0;
    for (auto at = lines.begin(); at != lines.end(); ++at) {
        const std::string &line = *at;
        if (line.compare(0, 6, "array ") == 0) {
            const std::vector<Int> shape(1, std::atoi(line.c_str() + 6));
            if (arrays == memory->arrays.size()) memory->arrays.emplace_back(new_blob<Dtype>(shape, memory->device));
            if (memory->arrays[arrays]->shape() != shape) memory->arrays[arrays]->Reshape(shape);
            arrays++;
        } else if (line.compare(0, 7, "divide ") == 0) {
            const std::vector<std::string> words = words_of(line);
            const std::uint64_t address = std::strtoull(words.at(1).c_str(), nullptr, 10);
            quotients_.push_back(Quotient{reinterpret_cast<Dtype *>(static_cast<std::uintptr_t>(address)),
                                          index_of(words.at(2)), index_of(words.at(3))});
        } else if (line.compare(0, 6, "count ") == 0) {
            const std::vector<std::string> words = words_of(line);
            counts_.push_back(Count{index_of(words.at(1)), static_cast<Dtype>(number_of(words.at(2))),
                                    static_cast<Dtype>(number_of(words.at(3)))});
        } else {
            std::string graph;
            const int count = line.compare(0, 6, "graph ") == 0 ? std::atoi(line.c_str() + 6) : 0;
            for (int left = count; left > 0; left--) graph += *++at + '\n';
            read(line, graph, layer);
        }
    }
}

// run COUNT BUFFER... COUNT SCALAR... PROBLEM, or
// graph LINES PASSES PRECISION COUNT BUFFER... COUNT SCALAR... OUTPUT...
template <typename Dtype>
void Program<Dtype>::read(const std::string &line, const std::string &graph, const std::string &layer) {
    std::size_t position = 0;
    const auto next = [&]() {
        const std::size_t begin = position, end = line.find(' ', begin);
        position = end == std::string::npos ? line.size() : end + 1;
        return line.substr(begin, end == std::string::npos ? end : end - begin);
    };
    steps_.emplace_back();
    Step &step = steps_.back();
    Source source;
    next();
    if (!graph.empty()) {
        next();
        source.passes = next();
        source.precision = next();
    }
    for (int left = std::atoi(next().c_str()); left > 0; left--) {
        std::string word = next();
        clg_buffer buffer = {};
        buffer.size = sizeof buffer;
        buffer.kind = CLG_HOST;
        buffer.mode = word[0] == '-' ? CLG_SKIP : word[0] == '+' ? CLG_ACCUMULATE : CLG_OVERWRITE;
        if (word[0] == '+') word.erase(0, 1);
        const bool gradient = std::isupper(static_cast<unsigned char>(word[0])) != 0;
        const char kind = static_cast<char>(std::tolower(static_cast<unsigned char>(word[0])));
        char *rest = nullptr;
        const std::uint64_t index = word.size() > 1 ? std::strtoull(word.c_str() + 1, &rest, 10) : 0;
        if (kind == 'h') {
            buffer.handle = reinterpret_cast<void *>(static_cast<std::uintptr_t>(index));
            buffer.bytes = std::strtoull(rest + 1, nullptr, 10);
        }
        step.names.push_back(Buffer{kind, gradient, false, static_cast<std::size_t>(index)});
        step.buffers.push_back(buffer);
    }
    for (int left = std::atoi(next().c_str()); left > 0; left--) {
        const std::string word = next();
        if (word[0] == '@') step.deferred.emplace_back(step.scalars.size(), "number " + layer + " " + word.substr(1));
        step.scalars.push_back(word[0] == '@' ? 0 : number_of(word));
    }
    source.text = graph;
    (graph.empty() ? source.text : source.outputs) = line.substr(position);
    step.plan = plan_for(context_, source);
    if (step.plan->arguments.size() != step.names.size())
        throw Refusal("[caffe] got a plan with other arguments: " + line);
    for (std::size_t i = 0; i < step.names.size(); i++) {
        step.buffers[i].dtype = step.plan->arguments[i].dtype;
        step.names[i].reads = step.plan->arguments[i].role == CLG_IN;
    }
}

template <typename Dtype>
void Program<Dtype>::run(const Memory<Dtype> &memory) {
    for (const Quotient &quotient : quotients_) {
        caffe::Blob<Dtype> *blob = memory.find('p', quotient.parameter);
        const Dtype divisor = memory.find('p', quotient.divisor)->cpu_data()[0],
                    factor = divisor == 0 ? 0 : 1 / divisor;
        const Dtype *values = blob->cpu_data();
        for (Int i = 0; i < blob->count(); i++) quotient.result[i] = values[i] * factor;
    }
    for (Step &step : steps_) {
        for (std::size_t i = 0; i < step.names.size(); i++) {
            const Buffer &name = step.names[i];
            if (name.kind != 'h' && name.kind != '-')
                locate(memory.find(name.kind, name.index), name.gradient, name.reads, place_, &step.buffers[i]);
        }
        for (const auto &deferred : step.deferred) step.scalars[deferred.first] = number_of(ask(deferred.second));
        if (clg_plan_run(step.plan->handle, step.buffers.data(), static_cast<std::uint32_t>(step.buffers.size()),
                         step.scalars.data(), static_cast<std::uint32_t>(step.scalars.size())) != CLG_OK)
            throw Refusal(clg_last_error());
    }
    for (const Count &count : counts_) {
        Dtype *number = static_cast<Dtype *>(on_host(memory.find('p', count.parameter), false));
        *number *= count.factor;
        *number += count.term;
    }
}

template struct Memory<float>;
CLGRAFT_DOUBLE(template struct Memory<double>;)
template class Program<float>;
CLGRAFT_DOUBLE(template class Program<double>;)

}  // namespace clgraft_caffe
