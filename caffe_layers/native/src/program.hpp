// What a layer's forward or backward pass runs: plans on named memory, as the core has described them.
#ifndef CLGRAFT_CAFFE_PROGRAM_HPP
#define CLGRAFT_CAFFE_PROGRAM_HPP

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memory.hpp"
#include "planner.hpp"

namespace clgraft_caffe {

// The memory that a layer's programs name.
template <typename Dtype>
struct Memory {
    const Blobs<Dtype> *bottom, *top;
    std::vector<shared_ptr<caffe::Blob<Dtype>>> *parameters;
    std::vector<std::unique_ptr<caffe::Blob<Dtype>>> arrays;  // the layer's own
    Device *device;

    caffe::Blob<Dtype> *find(char kind, std::size_t index) const;
};

template <typename Dtype>
class Program {
  public:
    // Reads lines of the core's service (hosted/service.py), and makes their plans. Throws Refusal.
    Program(const std::vector<std::string> &lines, const std::string &layer, Place place, Memory<Dtype> *memory);

    // Runs everything. Throws Refusal.
    void run(const Memory<Dtype> &memory);

  private:
    struct Buffer {
        char kind;  // b, t, p, s: bottom, top, parameter, array; h: host memory; -: none
        bool gradient, reads;
        std::size_t index;
    };
    struct Step {
        std::shared_ptr<Plan> plan;
        std::vector<Buffer> names;
        std::vector<clg_buffer> buffers;  // the constant parts are set
        std::vector<double> scalars;
        // Scalars that are known only when the step runs: their places, and the question for the core.
        std::vector<std::pair<std::size_t, std::string>> deferred;
    };
    struct Quotient {  // of a parameter and another one's number, on the host in front of each run
        Dtype *result;
        std::size_t parameter, divisor;
    };
    struct Count {  // of a parameter with one number, after each run
        std::size_t parameter;
        Dtype factor, term;
    };
    void read(const std::string &line, const std::string &graph, const std::string &layer);

    Place place_;
    clg_context context_;
    std::vector<Step> steps_;
    std::vector<Quotient> quotients_;
    std::vector<Count> counts_;
};

}  // namespace clgraft_caffe

#endif
