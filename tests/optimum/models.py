"""Small models with random weights, exported by optimum, with generated tokenizers: `python models.py FOLDER` writes them all."""

import pathlib
import sys

import tokenizers
import torch
import transformers
from optimum.exporters.onnx import main_export

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64}
SEQ2SEQ = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = {token: i for i, token in enumerate([*SPECIAL.values(), *LETTERS, *(f"##{letter}" for letter in LETTERS)])}
ENDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}


def tokenizer():
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    made.decoder = tokenizers.decoders.WordPiece()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **SPECIAL)


def bert(labels=2):
    return transformers.BertConfig(vocab_size=len(VOCABULARY), num_labels=labels, **SIZES)


def clip():
    text = {"vocab_size": len(VOCABULARY), "eos_token_id": 3, **SIZES}
    return transformers.CLIPConfig(text_config=text, vision_config={**SIZES, "image_size": 32, "patch_size": 8}, projection_dim=16)


def models():
    """Returns the models by name, as pairs of a task and a model."""
    words = {"vocab_size": len(VOCABULARY), **ENDS}
    return {
        "features": ("feature-extraction", transformers.BertModel(bert())),
        "sequences": ("text-classification", transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(vocab_size=len(VOCABULARY), dim=32, n_layers=2, n_heads=4, hidden_dim=48, num_labels=3))),
        "tokens": ("token-classification", transformers.BertForTokenClassification(bert(5))),
        "answers": ("question-answering", transformers.BertForQuestionAnswering(bert())),
        "masks": ("fill-mask", transformers.RobertaForMaskedLM(transformers.RobertaConfig(vocab_size=len(VOCABULARY), type_vocab_size=1, **SIZES))),
        "choices": ("multiple-choice", transformers.BertForMultipleChoice(bert())),
        "gpt2": ("text-generation-with-past", transformers.GPT2LMHeadModel(transformers.GPT2Config(n_positions=64, n_embd=32, n_layer=2, n_head=4, **words))),
        "llama": ("text-generation-with-past", transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **SIZES, **words))),
        "t5": ("text2text-generation-with-past", transformers.T5ForConditionalGeneration(transformers.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, **words))),
        "bart": ("text2text-generation-with-past", transformers.BartForConditionalGeneration(transformers.BartConfig(max_position_embeddings=64, **SEQ2SEQ, **words))),
        "clip": ("zero-shot-image-classification", transformers.CLIPModel(clip())),
        "vit": ("image-classification", transformers.ViTForImageClassification(transformers.ViTConfig(image_size=32, patch_size=8, num_labels=4, **SIZES))),
        "segformer": ("semantic-segmentation", transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(
            num_encoder_blocks=4, depths=[1] * 4, hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16, num_labels=5))),
        "whisper": ("automatic-speech-recognition-with-past", transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(
            num_mel_bins=16, max_source_positions=1500, max_target_positions=32, suppress_tokens=[], begin_suppress_tokens=[], **SEQ2SEQ, **words))),
    }


def main(folder: pathlib.Path) -> None:
    torch.manual_seed(0)
    for name, (task, model) in models().items():
        made, exported = folder / "made" / name, folder / name
        if model.generation_config is not None:
            model.generation_config.update(**ENDS)
        model.eval().save_pretrained(made)
        tokenizer().save_pretrained(made)
        main_export(str(made), output=str(exported), task=task, do_validation=False, no_post_process=False, device="cpu")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
