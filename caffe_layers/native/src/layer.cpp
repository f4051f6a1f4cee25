#include "layer.hpp"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <locale>
#include <sstream>

#include "caffe/filler.hpp"

namespace clgraft_caffe {

namespace {

std::string shape_word(const std::vector<Int> &shape) {
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text << '[';
    for (std::size_t i = 0; i < shape.size(); i++) text << (i ? "," : "") << shape[i];
    text << ']';
    return text.str();
}

std::vector<Int> shape_of(const std::string &word) {
    std::vector<Int> shape;
    std::istringstream text(word.substr(1, word.size() - 2));
    text.imbue(std::locale::classic());
    for (std::string size; std::getline(text, size, ',');) shape.push_back(std::atoi(size.c_str()));
    return as_blob(shape);
}

template <typename Function>
std::string address_word(Function *function) {
    return std::to_string(reinterpret_cast<std::uintptr_t>(function));
}

template <typename Dtype>
std::string bottom_words(const Blobs<Dtype> &bottom) {
    std::string words;
    for (const caffe::Blob<Dtype> *blob : bottom) words += ' ' + shape_word(blob->shape());
    return words;
}

template <typename Dtype>
void fill_blob(const std::string &text, caffe::Blob<Dtype> *blob) {
    caffe::FillerParameter parameters;
    if (!google::protobuf::TextFormat::ParseFromString(text, &parameters))
        throw Refusal("[filler] got " + text + ", expected a FillerParameter");
    const shared_ptr<caffe::Filler<Dtype>> filler(caffe::GetFiller<Dtype>(parameters));
    filler->Fill(blob);
}

}  // namespace

Served &served() {
    static Served counts;  // zero
    return counts;
}

template <typename Dtype>
ServedLayer<Dtype>::ServedLayer(const caffe::LayerParameter &parameters, const LayerPointer<Dtype> &own)
    : Layer<Dtype>(parameters), own_(own), hands_over_(false), in_region_(false), begins_(false), ends_(false),
      in_place_(false) {
    memory_.parameters = &this->blobs_;
    memory_.device = device_of<Dtype>(this);
}

template <typename Dtype>
ServedLayer<Dtype>::~ServedLayer() {
    if (!number_.empty()) forget_layer(number_);
}

template <typename Dtype>
std::string ServedLayer<Dtype>::title() const {
    return "layer '" + this->layer_param_.name() + "' (" + this->layer_param_.type() + ")";
}

// Lets Caffe's own layer take over, on the blobs that there are; without one there is nothing
// left to do but to say why.
template <typename Dtype>
void ServedLayer<Dtype>::hand_over(const Refusal &reason, const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) {
    // the other layers of a region have recorded themselves, and wait for this one
    const bool waited_for =
        reason.what()[0] &&
        this->layer_param_.python_param().param_str().find("# clgraft region ") != std::string::npos;
    if (!own_ || waited_for) {
        LOG(ERROR) << "clgraft: " << title() << ": " << reason.what();
        throw std::runtime_error(std::string(reason.what()) + " (in " + title() + ")");
    }
    if (reason.what()[0]) LOG(WARNING) << "clgraft: " << title() << " stays Caffe's own: " << reason.what();
    hands_over_ = true;
    served().handed_over++;
    own_->blobs() = this->blobs_;
    own_->SetUp(bottom, top);
    this->blobs_ = own_->blobs();
    const std::string type = this->layer_param_.type();
    this->layer_param_ = own_->layer_param();
    this->layer_param_.set_type(type);
    this->param_propagate_down_.resize(this->blobs_.size(), true);  // nobody sets them for a layer inside of a layer
    for (std::size_t i = 0; i < this->param_propagate_down_.size(); i++)
        own_->set_param_propagate_down(static_cast<int>(i), this->param_propagate_down_[i]);
}

template <typename Dtype>
void ServedLayer<Dtype>::LayerSetUp(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) {
    try {
        if (!planner_runs()) throw Refusal(own_ ? "" : "Python cannot plan");  // what is wrong was logged
        set_up(bottom, top);
    } catch (const Refusal &reason) {
        hand_over(reason, bottom, top);
    }
    // The OpenCL branch prepares its quantizers, for the blobs that there are now.
    Layer<Dtype>::LayerSetUp(bottom, top);
}

template <typename Dtype>
void ServedLayer<Dtype>::set_up(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) {
    caffe::LayerParameter parameters(this->layer_param_);
    parameters.clear_blobs();
    adapt(&parameters);
    std::string question =
        "setup " + this->layer_param_.type() + ' ' + std::to_string(static_cast<int>(this->phase_)) +
        (sizeof(Dtype) == sizeof(float) ? " f32 " : " f64 ") + address_word(this) + ' ' +
        address_word(&ServedLayer<Dtype>::pointer) + ' ' + address_word(&ServedLayer<Dtype>::shape) + ' ' +
        address_word(&ServedLayer<Dtype>::fill) + ' ' + std::to_string(top.size()) + bottom_words(bottom) + " |";
    for (const auto &blob : this->blobs_) question += ' ' + shape_word(blob->shape());
    const std::vector<std::string> lines = lines_of(ask(question + '\n' + parameters.SerializeAsString()));
    number_ = lines.at(0);
    for (const std::string &line : lines) {
        if (line.compare(0, 5, "blob ") == 0) {
            const std::size_t space = line.find(' ', 5);
            make_blob(line.substr(5, space - 5), space == std::string::npos ? "" : line.substr(space + 1));
        }
        in_region_ = in_region_ || line == "region";
        begins_ = begins_ || line == "begin";
        ends_ = ends_ || line == "end";
        if (line == "loss" && this->layer_param_.loss_weight_size() == 0)  // as in Caffe's own loss layers
            for (std::size_t i = 0; i < top.size(); i++) this->layer_param_.add_loss_weight(i ? 0 : 1);
        if (line == "fixed")
            for (int i = 0; i < static_cast<int>(this->blobs_.size()); i++) {
                if (this->layer_param_.param_size() == i) this->layer_param_.add_param()->set_lr_mult(0);
                if (this->layer_param_.param(i).lr_mult() != 0)
                    throw Refusal("[caffe] got lr_mult " + std::to_string(this->layer_param_.param(i).lr_mult()) +
                                  " for blob " + std::to_string(i) + ", expected 0: the layer computes it");
            }
    }
    this->param_propagate_down_.resize(this->blobs_.size(), true);
    served().ours++;
}

template <typename Dtype>
void ServedLayer<Dtype>::make_blob(const std::string &shape, const std::string &filler) {
    this->blobs_.push_back(shared_ptr<caffe::Blob<Dtype>>(new_blob<Dtype>(shape_of(shape), memory_.device)));
    fill_blob(filler, this->blobs_.back().get());
}

template <typename Dtype>
void ServedLayer<Dtype>::Reshape(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) {
    if (!hands_over_) {
        try {
            reshape(bottom, top);
        } catch (const Refusal &reason) {
            hand_over(reason, bottom, top);
        }
    }
    if (hands_over_) own_->Reshape(bottom, top);
}

template <typename Dtype>
void ServedLayer<Dtype>::reshape(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) {
    memory_.bottom = &bottom;  // the first loss of a region runs it, in front of the passes of the layers that follow
    memory_.top = &top;
    bool in_place = false, same = shapes_.size() == bottom.size();
    for (const caffe::Blob<Dtype> *blob : top)
        in_place = in_place || std::find(bottom.begin(), bottom.end(), blob) != bottom.end();
    for (std::size_t i = 0; same && i < bottom.size(); i++) same = bottom[i]->shape() == shapes_[i];
    if (same && in_place == in_place_) return;
    shapes_.clear();
    for (ProgramPointer &program : forward_) program.reset();
    backward_.clear();
    const std::vector<std::string> lines =
        lines_of(ask("reshape " + number_ + (in_place ? " 1" : " 0") + bottom_words(bottom)));
    for (std::size_t i = 0; i < top.size(); i++) top[i]->Reshape(shape_of(lines.at(i).substr(4)));
    for (const caffe::Blob<Dtype> *blob : bottom) shapes_.push_back(blob->shape());
    in_place_ = in_place;
}

template <typename Dtype>
void ServedLayer<Dtype>::on_host(const char *step) {
    ask(std::string(step) + ' ' + number_);
}

template <typename Dtype>
void ServedLayer<Dtype>::forward(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top, Place place) {
    memory_.bottom = &bottom;
    memory_.top = &top;
    ProgramPointer &program = forward_[place == Place::device];
    if (!hands_over_ && !in_region_ && !program) {
        try {
            program.reset(new Program<Dtype>(lines_of(ask("forward " + number_)), number_, place, &memory_));
        } catch (const Refusal &reason) {
            hand_over(reason, bottom, top);
        }
    }
    if (hands_over_) {
        own_->blobs() = this->blobs_;  // a layer around this one may have put in its own
        own_->Forward(bottom, top);
        return;
    }
    try {
        if (in_region_) {
            for (const std::string &line : lines_of(ask("enter " + number_)))
                if (line.compare(0, 7, "hidden ") == 0)
                    hide(top.at(static_cast<std::size_t>(std::atoi(line.c_str() + 7))));
            return;
        }
        if (begins_) on_host("begin");
        program->run(memory_);
        if (ends_) on_host("end");
    } catch (const Refusal &reason) {
        LOG(ERROR) << "clgraft: " << title() << ", forward: " << reason.what();
        throw std::runtime_error(std::string(reason.what()) + " (in " + title() + ")");
    }
}

template <typename Dtype>
void ServedLayer<Dtype>::backward(const Blobs<Dtype> &top, const std::vector<bool> &propagate_down,
                                  const Blobs<Dtype> &bottom, Place place) {
    if (hands_over_) {
        for (std::size_t i = 0; i < this->blobs_.size(); i++)
            own_->set_param_propagate_down(static_cast<int>(i), this->param_propagate_down(static_cast<int>(i)));
        own_->blobs() = this->blobs_;
        own_->Backward(top, propagate_down, bottom);
        return;
    }
    memory_.bottom = &bottom;
    memory_.top = &top;
    std::string flags(1, place == Place::device ? 'd' : 'h');
    flags += " .";  // so that no word is empty
    for (const bool flag : propagate_down) flags += flag ? '1' : '0';
    flags += " .";
    for (std::size_t i = 0; i < this->blobs_.size(); i++)
        flags += this->param_propagate_down(static_cast<int>(i)) ? '1' : '0';
    try {
        if (in_region_) {
            ask("leave " + number_ + flags.substr(1));
            return;
        }
        ProgramPointer &program = backward_[flags];
        if (!program)
            program.reset(
                new Program<Dtype>(lines_of(ask("backward " + number_ + flags.substr(1))), number_, place, &memory_));
        program->run(memory_);
    } catch (const Refusal &reason) {
        LOG(ERROR) << "clgraft: " << title() << ", backward: " << reason.what();
        throw std::runtime_error(std::string(reason.what()) + " (in " + title() + ")");
    }
}

template <typename Dtype>
void ServedLayer<Dtype>::Forward_cpu(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) {
    forward(bottom, top, Place::host);
}

template <typename Dtype>
void ServedLayer<Dtype>::Backward_cpu(const Blobs<Dtype> &top, const std::vector<bool> &propagate_down,
                                      const Blobs<Dtype> &bottom) {
    backward(top, propagate_down, bottom, Place::host);
}

template <typename Dtype>
void *ServedLayer<Dtype>::pointer(void *layer, int side, int index, int gradient) {
    const Memory<Dtype> &memory = static_cast<ServedLayer<Dtype> *>(layer)->memory_;
    return clgraft_caffe::on_host(memory.find("btp"[side], static_cast<std::size_t>(index)), gradient != 0);
}

template <typename Dtype>
int ServedLayer<Dtype>::shape(void *layer, int side, int index, int *sizes, int axes) {
    const Memory<Dtype> &memory = static_cast<ServedLayer<Dtype> *>(layer)->memory_;
    caffe::Blob<Dtype> *blob = memory.find("btp"[side], static_cast<std::size_t>(index));
    if (axes >= 0) blob->Reshape(as_blob(std::vector<Int>(sizes, sizes + axes)));
    std::copy(blob->shape().begin(), blob->shape().end(), sizes);
    return static_cast<int>(blob->shape().size());
}

template <typename Dtype>
int ServedLayer<Dtype>::fill(const char *filler, const int *shape, int axes, void *values, int item) {
    try {
        caffe::Blob<float> blob(std::vector<Int>(shape, shape + axes));
        if (item != static_cast<int>(sizeof(float))) return 0;
        fill_blob(filler, &blob);
        std::copy(blob.cpu_data(), blob.cpu_data() + blob.count(), static_cast<float *>(values));
        return 1;
    } catch (const Refusal &) {
        return 0;
    }
}

template class ServedLayer<float>;
CLGRAFT_DOUBLE(template class ServedLayer<double>;)

}  // namespace clgraft_caffe
