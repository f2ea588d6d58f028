"""From a data set to questions: where rows come from, how a row is put to a model, what is held out."""

from environments.dataset_environment.questions.loading import Questions, load_questions
from environments.dataset_environment.questions.question import Question, QuestionSet

__all__ = ["Question", "QuestionSet", "Questions", "load_questions"]
