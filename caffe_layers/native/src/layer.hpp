// A layer of clgraft's in Caffe: moves blobs and calls plans. What it computes is decided by the Python core.
#ifndef CLGRAFT_CAFFE_LAYER_HPP
#define CLGRAFT_CAFFE_LAYER_HPP

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "program.hpp"

namespace clgraft_caffe {

// How many layers were set up, and how many of them Caffe's own took over.
struct Served {
    std::atomic<unsigned long long> ours, handed_over;
};
Served &served();

// Puts parameters that only a fork of Caffe's has into the form that the core reads. Throws
// Refusal where they ask for more.
void adapt(caffe::LayerParameter *parameters);

template <typename Dtype>
class ServedLayer : public Layer<Dtype> {
  public:
    // `own` is Caffe's own layer for the same parameters, or null: it answers questions about its kind, and takes over
    // what clgraft does not serve.
    ServedLayer(const caffe::LayerParameter &parameters, const LayerPointer<Dtype> &own);
    ~ServedLayer() override;

    void LayerSetUp(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) override;
    void Reshape(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) override;

    const char *type() const override { return this->layer_param_.type().c_str(); }
    Int ExactNumBottomBlobs() const override { return own_ ? own_->ExactNumBottomBlobs() : -1; }
    Int MinBottomBlobs() const override { return own_ ? own_->MinBottomBlobs() : -1; }
    Int MaxBottomBlobs() const override { return own_ ? own_->MaxBottomBlobs() : -1; }
    Int ExactNumTopBlobs() const override { return own_ ? own_->ExactNumTopBlobs() : -1; }
    Int MinTopBlobs() const override { return own_ ? own_->MinTopBlobs() : -1; }
    Int MaxTopBlobs() const override { return own_ ? own_->MaxTopBlobs() : -1; }
    bool EqualNumBottomTopBlobs() const override { return own_ && own_->EqualNumBottomTopBlobs(); }
    bool AutoTopBlobs() const override { return own_ && own_->AutoTopBlobs(); }
    bool AllowForceBackward(const Int bottom) const override { return !own_ || own_->AllowForceBackward(bottom); }

  protected:
    void Forward_cpu(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) override;
    void Backward_cpu(const Blobs<Dtype> &top, const std::vector<bool> &propagate_down,
                      const Blobs<Dtype> &bottom) override;
    void Forward_gpu(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) override;
    void Backward_gpu(const Blobs<Dtype> &top, const std::vector<bool> &propagate_down,
                      const Blobs<Dtype> &bottom) override;

  private:
    typedef std::unique_ptr<Program<Dtype>> ProgramPointer;

    void set_up(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top);
    void make_blob(const std::string &shape, const std::string &filler);
    void reshape(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top);
    void forward(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top, Place place);
    void backward(const Blobs<Dtype> &top, const std::vector<bool> &propagate_down, const Blobs<Dtype> &bottom,
                  Place place);
    void on_host(const char *step);
    void hand_over(const Refusal &reason, const Blobs<Dtype> &bottom, const Blobs<Dtype> &top);
    std::string title() const;

    // What the Python core calls while it works on the host (hosted/blobs.py).
    static void *pointer(void *layer, int side, int index, int gradient);
    static int shape(void *layer, int side, int index, int *sizes, int axes);
    static int fill(const char *filler, const int *shape, int axes, void *values, int item);

    LayerPointer<Dtype> own_;
    bool hands_over_;                       // Caffe's own layer runs
    std::string number_;                    // of the layer in the core; empty before it is set up
    bool in_region_;                        // the core runs it, with the layers next to it
    bool begins_, ends_;                    // whether the core has work to do in front of and after each forward pass
    std::vector<std::vector<int>> shapes_;  // what the programs are for: the bottoms' shapes,
    bool in_place_;                         // and whether the layer works in place
    Memory<Dtype> memory_;
    ProgramPointer forward_[2];  // by place
    std::map<std::string, ProgramPointer> backward_;
};

}  // namespace clgraft_caffe

#endif
