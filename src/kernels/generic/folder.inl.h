// What every folder of kernels offers. Included inside its namespace.

EncodeFunction encoder(Format format) noexcept;
DecodeFunction decoder(Format format) noexcept;

/// Null functions where the format has no such product.
MatrixFunctions matrix(Format format, bool fast) noexcept;

PeakLoops peak_loops() noexcept;

void run(const RmsNormArgs&) noexcept;
void run(const LayerNormArgs&) noexcept;
void run(const SoftmaxArgs&) noexcept;
void run(const RopeArgs&) noexcept;
void run(const ActivateArgs&) noexcept;
void run(const AddScaledArgs&) noexcept;
void run(const ScaleArgs&) noexcept;
void run(const QuantizeArgs&) noexcept;
void run(const AttentionArgs&) noexcept;
void run(const ShortConvArgs&) noexcept;
void run(const StepSizeArgs&) noexcept;
void run(const LinearScanArgs&) noexcept;
void run(const ChannelScanArgs&) noexcept;
void run(const UpdateArgs&) noexcept;
void run(const SquaresArgs&) noexcept;
